"""Answers of chat and text completions: one JSON object, or a stream of chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from services.gateway.api.answer_types import UsageFields
from services.gateway.api.choices import Update, WholeChoice
from services.gateway.api.parameters import GenerationParameters
from services.gateway.deltas import Usage
from services.gateway.errors import ApiError
from services.gateway.forms import OutputForm
from services.gateway.parts import Content, Part, PartReader
from services.gateway.prompts import ChatFormats, Prompts
from services.gateway.scored import Scored
from services.gateway.sse import DONE, TextEventTemplate, event


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is known of an answer before its first token. `created` is Unix time in seconds."""

    id: str
    created: int
    model: str
    prompt_tokens: int

    def fields(self, kind: str) -> dict[str, Any]:
        """The fields in OpenAI's order; `kind` is the value of `object`."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a request when all its choices have ended. `timings`, in milliseconds, where asked for."""

    usage: Usage
    timings: dict[str, float] | None

    def fields(self) -> dict[str, Any]:
        """`usage`, and `timings` beside it."""
        usage = usage_fields(self.usage)
        return {"usage": usage} if self.timings is None else {"usage": usage, "timings": self.timings}


def usage_fields(usage: Usage) -> UsageFields:
    """The object `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class ChoiceForm(Protocol):
    """How a choice looks: in the chunks of a stream, as it comes, and in a whole answer. All JSON objects."""

    chunk_kind: str
    whole_kind: str

    def opening(self, index: int) -> Mapping[str, object] | None:
        """The choice's first chunk, before any part of it."""

    def part(self, index: int, part: Part) -> Mapping[str, object]:
        """A chunk with one part."""

    def finish(self, index: int, reason: str) -> Mapping[str, object]:
        """The choice's last chunk."""

    def logprobs(self, scored: Scored) -> Mapping[str, object] | None:
        """What a choice has in `logprobs` for these tokens."""

    def whole(self, choice: WholeChoice) -> Mapping[str, object]:
        """The whole choice."""

    def answer_fields(self, choices: Sequence[WholeChoice]) -> Mapping[str, object]:
        """What a whole answer has beside its choices."""


class Answer(Protocol):
    """Builds the answer to one request, whole or as server-sent events."""

    def events(self, update: Update, summary: Summary | None = None) -> bytes:
        """The events of an update; `summary` comes with the request's last one."""

    def whole(self, choices: Sequence[WholeChoice], summary: Summary) -> bytes:
        """The answer as one JSON object."""

    @property
    def failure(self) -> Callable[[ApiError], bytes] | None:
        """Makes the last events of a stream that failed; None where they are only the error."""


class ChoicesAnswer:
    """An answer with `choices`.

    With include_usage every chunk has `usage`, null in all but the last; where updates have the usage so far, that.
    `chosen`: those of the choices that a whole answer has.
    """

    failure = None

    def __init__(
        self,
        head: AnswerHead,
        include_usage: bool,
        form: ChoiceForm,
        chosen: Callable[[Sequence[WholeChoice]], Sequence[WholeChoice]] = lambda choices: choices,
    ) -> None:
        self._head = head
        self._chosen = chosen
        self._form = form
        self._chunk_head = head.fields(form.chunk_kind)
        self._include_usage = include_usage
        self._chunk_tail: dict[str, Any] = {"usage": None} if include_usage else {}
        self._templates: dict[int, TextEventTemplate] = {}  # of the choices that have begun
        self._waiting: dict[int, Scored] = {}  # tokens for each choice's next chunk

    def events(self, update: Update, summary: Summary | None = None) -> bytes:
        """The events of an update; `summary` comes with the request's last one."""
        template = self._templates.get(update.choice)
        events = b""
        if update.usage is not None:
            self._chunk_tail = {"usage": usage_fields(update.usage)}  # no template holds: each chunk is another
        if update.scored is not None:
            self._waiting.setdefault(update.choice, Scored()).extend(update.scored)
        if template is None:
            events, template = self._begin(update.choice)
        for part in update.parts:
            if isinstance(part, Content) and update.usage is None and update.scored is None:
                events += template.fill(part.text)
            else:
                events += _encode(self._chunk(self._scored(update.choice, self._form.part(update.choice, part))))
        if update.finish_reason is not None:
            events += self._finish(update.choice, update.finish_reason, summary)
        return events

    def _begin(self, choice: int) -> tuple[bytes, TextEventTemplate]:
        opening = self._form.opening(choice)
        marked = self._form.part(choice, Content(TextEventTemplate.mark()))
        template = self._templates[choice] = TextEventTemplate(self._chunk(marked))
        return b"" if opening is None else _encode(self._chunk(opening)), template

    def _finish(self, choice: int, reason: str, summary: Summary | None) -> bytes:
        """The finishing chunk; at the request's end also the chunk with the usage where it was asked for, and [DONE].

        Timings ride in the last chunk.
        """
        finish = self._chunk(self._scored(choice, self._form.finish(choice, reason)))
        if summary is None:
            return _encode(finish)
        if self._include_usage:
            return _encode(finish) + _encode({**self._chunk_head, "choices": [], **summary.fields()}) + DONE
        if summary.timings is not None:
            finish["timings"] = summary.timings
        return _encode(finish) + DONE

    def _scored(self, choice: int, chunk: Mapping[str, object]) -> Mapping[str, object]:
        """A choice's chunk with the log-probabilities that wait for it."""
        waiting = self._waiting.pop(choice, None)
        if waiting is not None and (waiting.tokens or waiting.prompt_tokens):
            return {**chunk, "logprobs": self._form.logprobs(waiting)}
        return chunk

    def _chunk(self, choice: Mapping[str, object]) -> dict[str, Any]:
        return {**self._chunk_head, "choices": [choice], **self._chunk_tail}

    def whole(self, choices: Sequence[WholeChoice], summary: Summary) -> bytes:
        """The answer as one JSON object."""
        choices = self._chosen(choices)
        forms = [self._form.whole(choice) for choice in choices]
        fields = {**self._head.fields(self._form.whole_kind), "choices": forms}
        return msgspec.json.encode({**fields, **self._form.answer_fields(choices), **summary.fields()})


def _encode(chunk: dict[str, Any]) -> bytes:
    return event(msgspec.json.encode(chunk))


@dataclass(frozen=True, slots=True)
class Reading:
    """How the text of each choice is read.

    `keep_special_tokens`: the reader needs them in the text. `token_offsets`: it is to be told where tokens begin.
    """

    make_reader: Callable[[], PartReader]
    keep_special_tokens: bool = False
    token_offsets: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request's body, checked. `form`: that its output must have; `reading`: how to read it, given what the prompt's
    template says of the model's formats. `renamed`: fields in the stations' errors that have another name here."""

    body: GenerationParameters
    prompts: Prompts
    form: OutputForm | None
    reading: Callable[[ChatFormats], Reading]
    renamed: Mapping[str, str] = field(default_factory=dict)


class Dialect(Protocol):
    """What the generation endpoints differ in."""

    path: str
    id_prefix: str
    prompt_field: str
    renders_chat: bool  # its prompts are chats

    def parse(self, data: bytes) -> Parsed:
        """The checked body. Raises ApiError 400."""

    def answer(self, head: AnswerHead, body: GenerationParameters) -> Answer:
        """What builds the answer."""
