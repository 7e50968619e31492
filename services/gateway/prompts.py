"""The forms in which a prompt arrives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to encode. `add_special_tokens` None: as the model expects."""

    text: str
    add_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class IdsPrompt:
    """Token ids, taken as they are."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, as JSON text."""

    messages_json: str
    add_generation_prompt: bool | None = None
    template_kwargs_json: str | None = None


Prompt = TextPrompt | IdsPrompt | ChatPrompt
