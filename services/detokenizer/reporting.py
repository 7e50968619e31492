"""What a station says of a request when it has left: metrics, one log line, one span."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from services.common.errors import InvalidArgument, PostroadError
from services.common.request_context import RequestContext
from services.common.tracing import Attributes, OpenSpan
from services.detokenizer.accounting import Timeline
from services.detokenizer.metrics import DetokenizerMetrics
from services.detokenizer.text_stream import TextStream
from services.pb.postroad.v1 import common_pb2

_OUTCOMES = {common_pb2.FINISH_REASON_STOP: "stop", common_pb2.FINISH_REASON_LENGTH: "length"}


class NoRequest(InvalidArgument):
    """The call ended before its request came."""


@dataclass(slots=True)
class Departure:
    """How a request left: its stream, as far as it got one, and what ended it otherwise than by its text's end."""

    has_request: bool = False  # the call was opened, and then its request came
    stream: TextStream | None = None
    messages: int = 0
    raised: BaseException | None = None

    @property
    def was_taken_back(self) -> bool:
        """The call ended before its request came, as happens where the prompt is refused: nothing to report."""
        return not self.has_request and isinstance(self.raised, asyncio.CancelledError | NoRequest)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around the request's work: notes what it raises."""
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise

    def outcome(self, caller: RequestContext) -> str:
        """In a word, for logs and metrics."""
        if isinstance(self.raised, asyncio.CancelledError):
            return "deadline_exceeded" if caller.time_remaining() == 0 else "cancelled"
        if self.raised is not None:
            return self.raised.reason.lower() if isinstance(self.raised, PostroadError) else "internal"
        end = self.stream.end if self.stream else None
        return _OUTCOMES.get(end.finish_reason, "unknown") if end else "unknown"


class Reporter:
    """Reports every request once."""

    def __init__(self, metrics: DetokenizerMetrics, log: FilteringBoundLogger) -> None:
        self._metrics = metrics
        self._log = log

    def report(self, caller: RequestContext, departure: Departure, timeline: Timeline, span: OpenSpan) -> None:
        """To be called when the request has left, whichever way."""
        stream, outcome = departure.stream, departure.outcome(caller)
        tokens = stream.num_tokens if stream else 0
        timings = stream.end.timings if stream and stream.end else common_pb2.Timings()
        total_us = (time.perf_counter_ns() - timeline.arrival) // 1000
        self._metrics.requests.labels(outcome).inc()
        self._metrics.tokens.inc(tokens)
        self._metrics.messages.inc(departure.messages)
        self._metrics.total_seconds.observe(total_us / 1e6)
        if timings.detokenizer_total_us:
            self._metrics.own_seconds.observe(timings.detokenize_us / 1e6)
            self._metrics.hop_seconds.observe(timings.engine_hop_us / 1e6)
        self._log.info(
            "request",
            request_id=caller.request_id,
            outcome=outcome,
            tokens=tokens,
            messages=departure.messages,
            total_ms=round(total_us / 1000, 3),
            detokenise_ms=timings.detokenize_us / 1000,
            engine_hop_ms=timings.engine_hop_us / 1000,
        )
        _end_span(span, timeline, departure, tokens, outcome)


def _end_span(span: OpenSpan, timeline: Timeline, departure: Departure, tokens: int, outcome: str) -> None:
    now, to_epoch = time.time_ns(), time.time_ns() - time.perf_counter_ns()
    if timeline.engine_ended:
        span.phase("engine_call", timeline.engine_called + to_epoch, timeline.engine_ended + to_epoch)
        span.phase("detokenise", timeline.engine_ended + to_epoch, now)
    failed = departure.raised is not None and outcome != "cancelled"
    attributes: Attributes = {
        "postroad.tokens": tokens,
        "postroad.messages": departure.messages,
        "postroad.outcome": outcome,
    }
    span.end(attributes, outcome if failed else None)
