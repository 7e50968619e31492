"""Parts of answers and chunks that chat and text completions share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from services.gateway.api.parameters import GenerationParameters
from services.gateway.deltas import Ending
from services.gateway.prompts import Prompt
from services.gateway.sse import DONE, event


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What each JSON object of an answer starts with. `created` is Unix time in seconds."""

    id: str
    created: int
    model: str

    def fields(self, kind: str) -> dict[str, Any]:
        """The fields in OpenAI's order; `kind` is the value of `object`."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ChunkFields:
    """The fields of a stream's chunks. With include_usage every chunk has `usage`, null in all but the last."""

    def __init__(self, head: AnswerHead, kind: str, include_usage: bool) -> None:
        self.include_usage = include_usage
        self._head = head.fields(kind)
        self._usage: dict[str, Any] = {"usage": None} if include_usage else {}

    def with_choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A chunk with one choice."""
        return {**self._head, "choices": [choice], **self._usage}

    def with_usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The chunk after the last choice: no choice, the usage."""
        return {**self._head, "choices": [], **usage}


def usage_fields(ending: Ending, timings: dict[str, float] | None) -> dict[str, Any]:
    """`usage`, and `timings` (milliseconds) beside it where they were asked for."""
    usage = {
        "prompt_tokens": ending.prompt_tokens,
        "completion_tokens": ending.completion_tokens,
        "total_tokens": ending.prompt_tokens + ending.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": ending.cached_tokens},
    }
    return {"usage": usage} if timings is None else {"usage": usage, "timings": timings}


def finish_event(chunk: ChunkFields, choice: dict[str, Any], ending: Ending, timings: dict[str, float] | None) -> bytes:
    """The finishing chunk, the usage chunk where it was asked for, and [DONE]. Timings ride in the last chunk."""
    finish = chunk.with_choice(choice)
    if chunk.include_usage:
        usage = chunk.with_usage(usage_fields(ending, timings))
        return event(msgspec.json.encode(finish)) + event(msgspec.json.encode(usage)) + DONE
    if timings is not None:
        finish["timings"] = timings
    return event(msgspec.json.encode(finish)) + DONE


class Answer(Protocol):
    """Builds the answer to one request, whole or as server-sent events."""

    def opening(self) -> bytes:
        """Events before the first text; may be empty."""

    def text(self, text: str) -> bytes:
        """The event with new text."""

    def finish(self, ending: Ending, timings: dict[str, float] | None) -> bytes:
        """The events after the last text."""

    def whole(self, text: str, ending: Ending, timings: dict[str, float] | None) -> bytes:
        """The answer as one JSON object."""


class Dialect(Protocol):
    """What the two generation endpoints differ in."""

    path: str
    id_prefix: str
    prompt_field: str

    def parse(self, data: bytes) -> tuple[GenerationParameters, Prompt]:
        """The checked body and its prompt. Raises ApiError 400."""

    def answer(self, head: AnswerHead, body: GenerationParameters) -> Answer:
        """What builds the answer."""
