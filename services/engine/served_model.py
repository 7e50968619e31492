"""The model as clients see it."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.loading.files import ModelFiles


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Known as soon as the model's files are read, before its weights are."""

    name: str
    files: ModelFiles
    created: int  # Unix time, seconds
