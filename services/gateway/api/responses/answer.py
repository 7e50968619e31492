"""What builds a response, whole or as the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from services.gateway.api.answers import AnswerHead, Summary
from services.gateway.api.choices import Block, Update, WholeChoice, WholeText
from services.gateway.api.responses.answer_types import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseUsage,
)
from services.gateway.api.responses.event_types import (
    Completed,
    Created,
    ErrorEvent,
    Failed,
    Incomplete,
    InProgress,
    StreamEvent,
)
from services.gateway.api.responses.fields import response_fields
from services.gateway.api.responses.output import Item
from services.gateway.api.responses.request import ResponseRequest
from services.gateway.deltas import Usage
from services.gateway.errors import ApiError
from services.gateway.parts import Part, ToolCallStart
from services.gateway.sse import event

ID_PREFIX = "resp_"


class ResponseAnswer:
    """One response. Its items are the blocks of the only choice."""

    def __init__(self, head: AnswerHead, body: ResponseRequest) -> None:
        self._request_id = head.id.removeprefix(ID_PREFIX)
        self._logprobs = body.num_logprobs is not None
        self._begun = response_fields(head, body)
        self._choice = WholeChoice(0)  # what the stream has told
        self._open: Item | None = None  # its last item
        self._events = 0  # that were sent

    def events(self, update: Update, summary: Summary | None = None) -> bytes:
        """The events of an update; `summary` comes with the last one."""
        return self._encode(self._told(update, summary))

    def _told(self, update: Update, summary: Summary | None) -> Iterator[StreamEvent]:
        if self._events == 0:
            yield Created(response=self._begun)
            yield InProgress(response=self._begun)
        if update.scored is not None:
            self._choice.scored.extend(update.scored)
        for part in update.parts:
            yield from self._part(part)
        if summary is not None:
            yield from self._end(update, summary)

    def _part(self, part: Part) -> Iterator[StreamEvent]:
        known = len(self._choice.blocks)
        tokens = self._choice.add_part(part)
        if len(self._choice.blocks) > known:
            yield from self._next_item()
        assert self._open is not None, "a part is in an item"
        if not isinstance(part, ToolCallStart):
            yield self._open.delta(part.text, tokens)

    def _next_item(self) -> Iterator[StreamEvent]:
        """Ends the item that is open, if one is, and begins that of the last block."""
        if self._open is not None:
            yield from self._open.closing("completed")
        self._open = self._items(self._choice.blocks)[-1]
        yield from self._open.opening()

    def _end(self, update: Update, summary: Summary) -> Iterator[StreamEvent]:
        if self._open is None:
            self._choice.blocks.append(WholeText([]))
            yield from self._next_item()
        assert self._open is not None, "there is an item"
        if tokens := self._choice.finish(str(update.finish_reason), update.stop_string):
            yield self._open.delta("", tokens)  # those of what is no text, as the end of sequence
        response = self._ended(self._choice, summary)
        if response.status == "incomplete":
            yield from self._open.closing("incomplete")
            yield Incomplete(response=response)
        else:
            yield from self._open.closing("completed")
            yield Completed(response=response)

    def whole(self, choices: Sequence[WholeChoice], summary: Summary) -> bytes:
        """The response as one JSON object."""
        (choice,) = choices
        if not choice.blocks:  # clients look for a message
            choice.blocks.append(WholeText([], list(choice.scored.tokens)))
        return msgspec.json.encode(self._ended(choice, summary))

    def failure(self, error: ApiError) -> bytes:
        """The last events of a stream that failed: the error, and the response as far as it has come."""
        items = self._items(self._choice.blocks)
        output = [item.fields("completed") for item in items[:-1]] + [item.fields("incomplete") for item in items[-1:]]
        why = ResponseError(_error_code(error.status), error.message)
        code, message, param = error.code, error.message, error.param
        told = ErrorEvent(
            code=code,
            message=message,
            param=param,
            error={"message": message, "type": error.kind, "param": param, "code": code},
        )
        failed = msgspec.structs.replace(self._begun, status="failed", error=why, output=output)
        return self._encode(iter((told, Failed(response=failed))))

    def _items(self, blocks: Sequence[Block]) -> list[Item]:
        return [Item.of(self._request_id, index, block, logprobs=self._logprobs) for index, block in enumerate(blocks)]

    def _ended(self, choice: WholeChoice, summary: Summary) -> Response:
        """The response of a choice that has ended: only its last item can be incomplete."""
        cut = choice.finish_reason == "length"
        *items, last = self._items(choice.blocks)
        return msgspec.structs.replace(
            self._begun,
            status="incomplete" if cut else "completed",
            completed_at=None if cut else int(time.time()),
            incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
            output=[
                *(item.fields("completed") for item in items),
                last.fields("incomplete" if cut else "completed"),
            ],
            usage=_usage(summary.usage),
            timings=msgspec.UNSET if summary.timings is None else summary.timings,
        )

    def _encode(self, events: Iterator[StreamEvent]) -> bytes:
        encoded = []
        for told in events:
            told.sequence_number = self._events
            self._events += 1
            encoded.append(event(msgspec.json.encode(told), str(told.__struct_config__.tag)))
        return b"".join(encoded)


def _error_code(status: int) -> Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]:
    """OpenAI's word that comes nearest."""
    if status >= 500:
        return "server_error"
    return "rate_limit_exceeded" if status == 429 else "invalid_prompt"


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        usage.prompt_tokens,
        InputTokensDetails(usage.cached_tokens),
        usage.completion_tokens,
        OutputTokensDetails(usage.reasoning_tokens),
        usage.prompt_tokens + usage.completion_tokens,
    )
