"""How answers and the events of a stream look; /openapi.json describes them by these types."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class ThinkingTokens(TypedDict):
    """Of the generated tokens those of the thinking."""

    thinking_tokens: int


class MessageUsage(TypedDict):
    """Tokens of the request. Those of the prompt that came from the prefix cache are not among `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str


class ThinkingContent(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning before the answer."""

    thinking: str
    signature: str


class ToolUseContent(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextContent | ThinkingContent | ToolUseContent


class MessageAnswer(msgspec.Struct, tag_field="type", tag="message"):
    """The answer as a whole; `stop_reason` is null in the first event of a stream alone."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More of the thinking."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The thinking has ended."""

    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of the JSON text of a call's input."""

    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class StopDelta(TypedDict):
    """How the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The first event: the message without content, with the usage so far."""

    message: MessageAnswer


class ContentBlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block begins: it is empty so far."""

    index: int
    content_block: ContentBlock


class ContentBlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """More of the block."""

    index: int
    delta: BlockDelta


class ContentBlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """The block has ended."""

    index: int


class MessageEnd(msgspec.Struct, tag_field="type", tag="message_delta"):
    """All blocks have ended. `usage` is that of the whole request."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Nothing happened."""


StreamEvent = MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageEnd | MessageStop | Ping


class CountedTokens(TypedDict):
    """What /v1/messages/count_tokens answers."""

    input_tokens: int
