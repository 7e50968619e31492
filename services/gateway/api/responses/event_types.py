"""The events of a response's stream; /openapi.json describes them by these types."""

from __future__ import annotations

import msgspec

from services.gateway.api.answer_types import ChatToken
from services.gateway.api.responses.answer_types import OutputItem, OutputPart, Response
from services.gateway.error_forms import ErrorFields


class StreamEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """An event. It is numbered when it is sent, from 0."""

    sequence_number: int = 0


class Created(StreamEvent, tag="response.created"):
    """The response begins."""

    response: Response


class InProgress(StreamEvent, tag="response.in_progress"):
    """The first token has come."""

    response: Response


class Completed(StreamEvent, tag="response.completed"):
    """The response has ended."""

    response: Response


class Incomplete(StreamEvent, tag="response.incomplete"):
    """The response was cut."""

    response: Response


class Failed(StreamEvent, tag="response.failed"):
    """The response failed; what had come of it is in it."""

    response: Response


class ItemAdded(StreamEvent, tag="response.output_item.added"):
    """An item begins, still empty."""

    output_index: int
    item: OutputItem


class ItemDone(StreamEvent, tag="response.output_item.done"):
    """An item has ended."""

    output_index: int
    item: OutputItem


class PartAdded(StreamEvent, tag="response.content_part.added"):
    """The text of an item begins, still empty."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputPart


class PartDone(StreamEvent, tag="response.content_part.done"):
    """The text of an item has ended."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputPart


class TextDelta(StreamEvent, tag="response.output_text.delta"):
    """More of a message's text."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[ChatToken]


class TextDone(StreamEvent, tag="response.output_text.done"):
    """A message's text as a whole."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[ChatToken]


class ReasoningDelta(StreamEvent, tag="response.reasoning_text.delta"):
    """More of the reasoning."""

    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningDone(StreamEvent, tag="response.reasoning_text.done"):
    """The reasoning as a whole."""

    item_id: str
    output_index: int
    content_index: int
    text: str


class ArgumentsDelta(StreamEvent, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(StreamEvent, tag="response.function_call_arguments.done"):
    """A call's arguments as a whole."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class ErrorEvent(StreamEvent, tag="error"):
    """The response failed. `error` is the same as in other answers, for clients that look for it."""

    code: str | None
    message: str
    param: str | None
    error: ErrorFields


EVENTS = (
    Created,
    InProgress,
    Completed,
    Incomplete,
    Failed,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    TextDelta,
    TextDone,
    ReasoningDelta,
    ReasoningDone,
    ArgumentsDelta,
    ArgumentsDone,
    ErrorEvent,
)
