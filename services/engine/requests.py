"""A request in the engine as the event loop sees it, from admission to its terminal event."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable

from services.common.errors import PostroadError
from services.engine.plan import TokenLogprobs
from services.engine.reporting import RequestRecord
from services.engine.scheduler.sequence import FinishReason, Sequence
from services.engine.wire import embed_response, stream_end, stream_start, token_logprobs
from services.pb.postroad.v1 import engine_pb2


class LiveRequest(ABC):
    """One sequence and whoever waits for it. Called on the event loop; exactly one `on_end`, after all tokens."""

    __slots__ = ("ended", "record", "sequence")

    def __init__(self, sequence: Sequence, record: RequestRecord) -> None:
        self.sequence = sequence
        self.record = record
        self.ended = False  # on_end was called: there is nothing to abort any more

    @abstractmethod
    def on_prompt_logprobs(self, logprobs: TokenLogprobs) -> None:
        """Of the prompt's next tokens, if asked for; all before `on_tokens`."""

    @abstractmethod
    def on_tokens(self, token_ids: Iterable[int], logprobs: TokenLogprobs | None) -> None:
        """`logprobs`: of token_ids, if asked for."""

    @abstractmethod
    def on_end(self, reason: FinishReason, error: PostroadError | None) -> None: ...


class StreamedRequest(LiveRequest):
    """A request with a call and a stream of its own. Tokens that its reader has not taken yet wait in one message."""

    __slots__ = ("_end", "_error", "_logprobs", "_prompt_logprobs", "_started", "_token_ids", "_wake")

    def __init__(self, sequence: Sequence, record: RequestRecord) -> None:
        super().__init__(sequence, record)
        self._token_ids: list[int] = []
        self._logprobs: TokenLogprobs | None = None  # of _token_ids
        self._prompt_logprobs: TokenLogprobs | None = None
        self._started = False
        self._end: engine_pb2.StreamEnd | None = None
        self._error: PostroadError | None = None
        self._wake = asyncio.Event()

    def on_prompt_logprobs(self, logprobs: TokenLogprobs) -> None:
        self._prompt_logprobs = joined(self._prompt_logprobs, logprobs)
        self._wake.set()

    def on_tokens(self, token_ids: Iterable[int], logprobs: TokenLogprobs | None) -> None:
        self._token_ids.extend(token_ids)
        if logprobs is not None:
            self._logprobs = joined(self._logprobs, logprobs)
        self._wake.set()

    def on_end(self, reason: FinishReason, error: PostroadError | None) -> None:
        self._end, self._error = stream_end(self.sequence, reason, error), error
        self._wake.set()

    async def next_message(self) -> engine_pb2.GenerateResponse:
        """What has come since the last message. Raises the error that ended the request, after all its tokens."""
        await self._wake.wait()
        self._wake.clear()
        token_ids, self._token_ids = self._token_ids, []
        if self._error is not None and not token_ids:
            raise self._error
        message = engine_pb2.GenerateResponse(token_ids=token_ids)
        if self._logprobs is not None:
            message.logprobs.CopyFrom(token_logprobs(self._logprobs))
            self._logprobs = None
        if self._prompt_logprobs is not None:
            message.prompt_logprobs.CopyFrom(token_logprobs(self._prompt_logprobs))
            self._prompt_logprobs = None
        if not self._started and token_ids:
            self._started = True
            message.start.CopyFrom(stream_start(self.sequence))
        if self._error is not None:
            self._wake.set()  # the next message is the error
        elif self._end is not None:
            message.end.CopyFrom(self._end)
        return message


class EmbeddedRequest(LiveRequest):
    """A prompt to embed: it yields nothing before its end. `outcome` is what its call returns or raises."""

    __slots__ = ("outcome",)

    def __init__(self, sequence: Sequence, record: RequestRecord) -> None:
        super().__init__(sequence, record)
        self.outcome: asyncio.Future[engine_pb2.EmbedResponse] = asyncio.get_running_loop().create_future()

    def on_prompt_logprobs(self, logprobs: TokenLogprobs) -> None:
        raise AssertionError("a prompt to embed is not scored")

    def on_tokens(self, token_ids: Iterable[int], logprobs: TokenLogprobs | None) -> None:
        raise AssertionError("a prompt to embed is not continued")

    def on_end(self, reason: FinishReason, error: PostroadError | None) -> None:
        if self.outcome.done():  # its call was cancelled
            return
        if error is not None:
            self.outcome.set_exception(error)
        elif reason is FinishReason.CANCELLED:
            self.outcome.cancel()
        else:
            self.outcome.set_result(embed_response(self.sequence))


def joined(waiting: TokenLogprobs | None, new: TokenLogprobs) -> TokenLogprobs:
    """What waits to be sent, and the tokens after it."""
    if waiting is None:
        return new
    waiting.extend(new)
    return waiting
