"""The answer to a message: one JSON object, or a stream of named events. Both are made of the same content blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic_core import from_json

from services.gateway.api.answers import AnswerHead, Summary
from services.gateway.api.choices import Block, Update, WholeChoice, WholeReasoning, WholeText, WholeToolCall
from services.gateway.api.messages.answer_types import (
    BlockDelta,
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageAnswer,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    SignatureDelta,
    StopDelta,
    StopReason,
    StreamEvent,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ToolUseContent,
)
from services.gateway.api.messages.parameters import MessagesParameters
from services.gateway.deltas import Usage
from services.gateway.parts import Content, Part, Reasoning, ToolCallArguments, ToolCallStart
from services.gateway.sse import TextEventTemplate, event

SIGNATURE = "unsigned"  # clients leave a thinking block without a signature out of the next request
_MARK = TextEventTemplate.mark()
_JSON_OBJECT = msgspec.json.Decoder(dict[str, Any])


def usage_fields(usage: Usage) -> MessageUsage:
    """The object `usage`: prompt tokens that came from the prefix cache count apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


class MessagesAnswer:
    """Builds the answer to one request. It has one choice."""

    failure = None

    def __init__(self, head: AnswerHead, body: MessagesParameters) -> None:
        self._head = head
        self._body = body
        self._begun = False
        self._has_calls = False
        self._blocks = 0  # that have begun
        self._open: type[Part] | None = None  # what the block that has not ended consists of
        self._template: TextEventTemplate | None = None  # of the deltas of that block

    def events(self, update: Update, summary: Summary | None = None) -> bytes:
        """The events of an update; `summary` comes with the last one."""
        events = b"" if self._begun else self._begin(update)
        for part in update.parts:
            events += self._part(part)
        if summary is not None:
            events += self._close_block() + self._finish(update, summary)
        return events

    def _begin(self, update: Update) -> bytes:
        self._begun = True
        cached_tokens = 0 if update.start is None else update.start.cached_tokens
        usage = Usage(self._head.prompt_tokens, 0, cached_tokens)
        return _event(MessageStart(self._message([], None, None, usage))) + _event(Ping())

    def _part(self, part: Part) -> bytes:
        match part:
            case Content():
                opening = b"" if self._open is Content else self._open_block(Content, TextContent(""), TextDelta(_MARK))
                return opening + self._fill(part.text)
            case Reasoning():
                opening = b"" if self._open is Reasoning else self._open_thinking()
                return opening if self._body.omits_thinking else opening + self._fill(part.text)
            case ToolCallStart():
                self._has_calls = True
                call = ToolUseContent(part.id, part.name, {})
                return self._open_block(ToolCallArguments, call, InputJsonDelta(_MARK))
            case ToolCallArguments():
                return self._fill(part.text)

    def _open_thinking(self) -> bytes:
        return self._open_block(Reasoning, ThinkingContent("", ""), ThinkingDelta(_MARK))

    def _open_block(self, kind: type[Part], block: ContentBlock, delta: BlockDelta) -> bytes:
        """The block that goes on ends, and another one begins. `delta`: its deltas, with the mark for their text."""
        closing, index = self._close_block(), self._blocks
        self._blocks, self._open = index + 1, kind
        self._template = TextEventTemplate(ContentBlockDelta(index, delta), _name(ContentBlockDelta))
        return closing + _event(ContentBlockStart(index, block))

    def _fill(self, text: str) -> bytes:
        assert self._template is not None, "a block is open"
        return self._template.fill(text)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        kind, self._open, index = self._open, None, self._blocks - 1
        signature = _event(ContentBlockDelta(index, SignatureDelta(SIGNATURE))) if kind is Reasoning else b""
        return signature + _event(ContentBlockStop(index))

    def _finish(self, update: Update, summary: Summary) -> bytes:
        reason = self._stop_reason(update.finish_reason, update.stop_string, self._has_calls)
        delta: StopDelta = {"stop_reason": reason, "stop_sequence": update.stop_string}
        return _event(MessageEnd(delta, usage_fields(summary.usage))) + _event(MessageStop())

    def whole(self, choices: Sequence[WholeChoice], summary: Summary) -> bytes:
        """The answer as one JSON object."""
        (choice,) = choices
        reason = self._stop_reason(choice.finish_reason, choice.stop_string, bool(choice.tool_calls))
        content = [self._whole_block(block) for block in choice.blocks]
        return msgspec.json.encode(self._message(content, reason, choice.stop_string, summary.usage))

    def _whole_block(self, block: Block) -> ContentBlock:
        text = "".join(block.pieces)
        match block:
            case WholeText():
                return TextContent(text)
            case WholeReasoning():
                return ThinkingContent("" if self._body.omits_thinking else text, SIGNATURE)
            case WholeToolCall():
                return ToolUseContent(block.id, block.name, call_input(text))

    def _message(
        self, content: list[ContentBlock], stop_reason: StopReason | None, stop_sequence: str | None, usage: Usage
    ) -> MessageAnswer:
        return MessageAnswer(
            id=self._head.id,
            role="assistant",
            model=self._head.model,
            content=content,
            stop_reason=stop_reason,
            stop_sequence=stop_sequence,
            usage=usage_fields(usage),
        )

    def _stop_reason(self, finish_reason: str | None, stop_string: str | None, has_calls: bool) -> StopReason:
        """A call that a stop sequence or a limit has cut is not to be made: only `tool_use` asks for that."""
        if stop_string is not None:
            return "stop_sequence"
        if finish_reason == "length":
            return "model_context_window_exceeded" if self._body.fills_window else "max_tokens"
        return "tool_use" if has_calls else "end_turn"


def call_input(text: str) -> dict[str, Any]:
    """The object of a call's arguments. Of a text that was cut, what is whole, as clients read a stream that was cut.

    What is no object is kept under the name `arguments`: a client that checks the input can tell the model.
    """
    try:
        return _JSON_OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        value = from_json(text, allow_partial=True, allow_inf_nan=False) if text else {}
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _event(of_stream: StreamEvent) -> bytes:
    return event(msgspec.json.encode(of_stream), _name(type(of_stream)))


def _name(kind: type[StreamEvent]) -> str:
    """An event is named after its type."""
    return str(kind.__struct_config__.tag)
