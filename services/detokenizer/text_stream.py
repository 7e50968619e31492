"""One request between its tokens and its text messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.errors import DeadlineExceeded, Internal, PostroadError, from_parts
from services.detokenizer.accounting import Timeline, complete_timings
from services.detokenizer.pacing import Hold, Pacer
from services.detokenizer.pipeline import TextPipeline
from services.detokenizer.scored_tokens import PromptTokens, ScoredPipeline
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2, engine_pb2

_STATUS_CODES = {status.value[0]: status for status in grpc.StatusCode}


class TextStream:
    """A TokenSink on one side; on the other `next_delta`, for one reader on the same event loop.

    Tokens become text as they arrive, so that a stop string is seen at once; the text then waits for the reader, which
    the pacer may hold back. The first token and the end are never held back.
    """

    def __init__(
        self,
        pipeline: TextPipeline,
        pacer: Pacer,
        timeline: Timeline,
        prompt_tokens: int,
        log: FilteringBoundLogger,
        *,
        echo: str = "",
        scored: ScoredPipeline | None = None,
        prompt_scores: PromptTokens | None = None,
    ) -> None:
        """`echo`: the prompt's text, to go out with the first token. `scored`: `pipeline` with log-probabilities."""
        self.timeline = timeline
        self.end: detokenizer_pb2.TextEnd | None = None
        self._pipeline = pipeline
        self._pacer = pacer
        self._prompt_tokens = prompt_tokens
        self._log = log
        self._echo = echo
        self._scored = scored
        self._prompt_scores = prompt_scores
        self._start = engine_pb2.StreamStart()
        self._engine_end: engine_pb2.StreamEnd | None = None
        self._error: PostroadError | None = None
        self._text = ""  # not sent yet
        self._num_tokens = 0  # not sent yet
        self._started = False  # the first message was sent
        self._hold: Hold | None = None  # of the pacer
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """No more tokens are wanted: the text has its end, or the request failed."""
        return self.end is not None or self._error is not None

    @property
    def needs_engine(self) -> bool:
        """The engine has not said that it is done with the request."""
        return self._engine_end is None

    @property
    def num_tokens(self) -> int:
        """Tokens of the output so far."""
        return self._pipeline.num_tokens

    # --- the engine's side

    def on_start(self, start: engine_pb2.StreamStart) -> None:
        self._start = start

    def on_prompt_scores(self, scores: common_pb2.TokenLogprobs) -> None:
        if self._prompt_scores is not None and not self.is_over:
            self._prompt_scores.push(scores)

    def on_tokens(self, token_ids: Sequence[int], scores: common_pb2.TokenLogprobs | None = None) -> None:
        if self.is_over:
            return
        self.timeline.token_arrived()
        self._push(token_ids, scores)
        if self._hold is not None and self._text and self._hold.on_token():
            self._hold = None
        if self._hold is None and (self._text or not self._started):
            self._wake()

    def on_end(
        self,
        token_ids: Sequence[int],
        end: engine_pb2.StreamEnd,
        scores: common_pb2.TokenLogprobs | None = None,
    ) -> None:
        if self.is_over:
            return
        if token_ids:
            self.timeline.token_arrived()
        self.timeline.engine_ended = time.perf_counter_ns()
        self._engine_end = end
        if end.finish_reason == common_pb2.FINISH_REASON_ERROR:
            status = _STATUS_CODES.get(end.error.code, grpc.StatusCode.UNAVAILABLE)
            self.on_error(from_parts(status, end.error.reason, end.error.message, end.error.param or None))
        elif end.finish_reason == common_pb2.FINISH_REASON_CANCELLED:
            # Nobody here has cancelled it: the engine saw the deadline first.
            self.on_error(DeadlineExceeded("the request's time is over"))
        else:
            self._finish(token_ids, end, scores)

    def on_error(self, error: PostroadError) -> None:
        if not self.is_over:
            self._error = error
            self._wake()

    # --- the caller's side

    async def next_delta(self) -> detokenizer_pb2.TextDelta:
        """The next message, as soon as there is something to say; the last one has `end`.

        Raises the error that ended the request, after the text that came before it.
        """
        while not self._is_ready():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None and not self._text:
            raise self._error
        delta = detokenizer_pb2.TextDelta(
            text=self._text, num_tokens=self._num_tokens, token_offsets=self._pipeline.take_offsets()
        )
        if not self._started and self._num_tokens:
            self._started = True
            delta.start.CopyFrom(self._start)
        self._text, self._num_tokens = "", 0
        if self._scored is not None:
            delta.tokens.extend(self._scored.take())
        if self._prompt_scores is not None:
            delta.prompt_tokens.extend(self._prompt_scores.take())
            if self._prompt_scores:
                return delta  # the rest, and an end, in further messages
        if self.end is not None:
            self.end.timings.CopyFrom(complete_timings(self.timeline, self._start, self._engine_end))
            delta.end.CopyFrom(self.end)
        elif self._error is None:
            self._hold = self._pacer.hold(self._release)
        return delta

    def _is_ready(self) -> bool:
        if self.is_over or (self._started and self._prompt_scores is not None and len(self._prompt_scores) > 0):
            return True
        return self._hold is None and (bool(self._text) or (not self._started and self._num_tokens > 0))

    def _release(self) -> None:
        self._hold = None
        if self._text:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- text

    def _push(self, token_ids: Sequence[int], scores: common_pb2.TokenLogprobs | None) -> None:
        if self._echo:
            self._text, self._echo = self._echo, ""
        try:
            output = self._pipeline.push(token_ids) if self._scored is None else self._scored.push(token_ids, scores)
        except Exception as error:
            self._fail_to_decode(error)
            return
        self._text += output.text
        self._num_tokens += output.num_tokens
        if output.matched is not None:
            self._end_with_stop_string(output.matched)

    def _finish(
        self, token_ids: Sequence[int], end: engine_pb2.StreamEnd, scores: common_pb2.TokenLogprobs | None
    ) -> None:
        """The engine has ended the request. Its last token is no text if it is the one that ended it."""
        stop_token_id = end.stop_token_id if end.HasField("stop_token_id") else None
        if stop_token_id is not None and token_ids and token_ids[-1] == stop_token_id:
            token_ids = token_ids[:-1]
        self._push(token_ids, scores)
        if self.is_over:
            return  # by a stop string in the last tokens
        before = self._pipeline.num_tokens
        try:
            if self._scored is None:
                self._text += self._pipeline.finish(stop_token_id)
            else:
                self._text += self._scored.finish(stop_token_id, scores)
        except Exception as error:
            self._fail_to_decode(error)
            return
        self._num_tokens += self._pipeline.num_tokens - before
        self.end = detokenizer_pb2.TextEnd(
            finish_reason=end.finish_reason,
            usage=end.usage,
            stop_token_id=stop_token_id,
            cumulative_logprob=self._cumulative_logprob(),
        )
        self._wake()

    def _end_with_stop_string(self, stop_string: str) -> None:
        self.timeline.engine_ended = self.timeline.last_token
        self.end = detokenizer_pb2.TextEnd(
            finish_reason=common_pb2.FINISH_REASON_STOP,
            stop_string=stop_string,
            usage=common_pb2.Usage(
                prompt_tokens=self._prompt_tokens,
                completion_tokens=self._pipeline.num_tokens,
                cached_tokens=self._start.cached_tokens,
            ),
            cumulative_logprob=self._cumulative_logprob(),
        )
        self._wake()

    def _cumulative_logprob(self) -> float | None:
        return None if self._scored is None else self._scored.cumulative_logprob

    def _fail_to_decode(self, error: Exception) -> None:
        """A token that cannot become text ends its own request and no other."""
        self._log.error("a token could not be decoded", exc_info=error)
        self.on_error(Internal("internal error"))
