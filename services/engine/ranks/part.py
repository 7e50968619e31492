"""A rank's part of a model."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.executor.model_runner import RunnerOptions
from services.engine.models.decoder import Decoder
from services.engine.ranks.group import RankGroup


@dataclass(frozen=True, slots=True)
class RankPart:
    """A rank with its weights, before it knows the others."""

    group: RankGroup  # in which `model` meets the others
    model: Decoder
    max_pages: int  # of its KV pool, for which the rank has room
    options: RunnerOptions  # with `group` as its collectives
