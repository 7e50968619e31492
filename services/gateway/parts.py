"""What the text of a choice is made of. Streams and whole answers are built from the same sequence of parts.

A `PartReader` stands between the deltas of one choice and its answer: it takes the text as it comes and says what it
is. `TextReader` is the one for plain text; formats of reasoning and of tool calls have readers of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Content:
    """Text of the answer itself, never empty."""

    text: str


@dataclass(slots=True)
class Reasoning:
    """Text that the model thinks aloud before its answer, never empty."""

    text: str


@dataclass(slots=True)
class ToolCallStart:
    """The model begins to call a function. `call` counts the calls of the choice, from 0."""

    call: int
    id: str
    name: str


@dataclass(slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments. The call has begun."""

    call: int
    text: str


Part = Content | Reasoning | ToolCallStart | ToolCallArguments


class PartReader(Protocol):
    """Reads one choice. Concatenated, the parts do not depend on how the text was cut into deltas."""

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text. It is not empty."""

    def close(self) -> Sequence[Part]:
        """What was held back; the text has ended."""

    def finish_reason(self, reason: str) -> str:
        """OpenAI's word for how the choice ended; `reason`: how its text did, stop or length. Called after `close`."""


class TextReader:
    """All text is content."""

    def read(self, text: str) -> Sequence[Part]:
        """The text as it is."""
        return (Content(text),)

    def close(self) -> Sequence[Part]:
        """Nothing is ever held back."""
        return ()

    def finish_reason(self, reason: str) -> str:
        """As the text ended."""
        return reason
