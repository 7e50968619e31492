"""The forms in which the prompts of a request arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Texts to encode, at least one. `add_special_tokens` None: as the model expects."""

    texts: list[str]
    add_special_tokens: bool | None = None

    @property
    def count(self) -> int:
        """How many prompts these are."""
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class IdsPrompts:
    """Token ids, one list per prompt, taken as they are."""

    ids: list[list[int]]

    @property
    def count(self) -> int:
        """How many prompts these are."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, as JSON text: one prompt."""

    messages_json: str
    add_generation_prompt: bool | None = None
    template_kwargs_json: str | None = None
    tools_json: str | None = None
    count: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class ChatFormats:
    """How the model writes tool calls and reasoning, by its template. Meanings: `postroad.v1.RenderChatResponse`."""

    tool_calls: str = ""
    reasoning: str = ""
    reasoning_open: bool = False


@dataclass(frozen=True, slots=True)
class EncodedPrompts:
    """Token ids, one list per prompt; `formats` of the answer where the prompt is a chat."""

    ids: list[list[int]]
    formats: ChatFormats = ChatFormats()


Prompts = TextPrompts | IdsPrompts | ChatPrompt
