"""What is told about each request when it is over: a log line, metrics, a span with its phases."""

from __future__ import annotations

import time

from structlog.typing import FilteringBoundLogger

from services.common.errors import PostroadError
from services.common.request_context import RequestContext
from services.common.tracing import Tracing
from services.engine.metrics import EngineMetrics
from services.engine.phases import Phases
from services.engine.scheduler.sequence import FinishReason, Sequence


class RequestRecord:
    """One request's; opened at arrival, closed by `rejected` or `ended`."""

    def __init__(
        self, context: RequestContext, tracing: Tracing, metrics: EngineMetrics, log: FilteringBoundLogger
    ) -> None:
        self._request_id = context.request_id
        self._span = tracing.open("engine", context.traceparent)
        self._metrics = metrics
        self._log = log
        self.admitted = False  # from then on its end is told by `ended`

    def rejected(self, error: PostroadError) -> None:
        """The call failed; nothing to tell if the request had been admitted."""
        if self.admitted:
            return
        self._span.end({"request_id": self._request_id, "outcome": error.reason.lower()}, error.message)
        self._log.info(
            "request", request_id=self._request_id, outcome=error.reason.lower(), error=error.message, param=error.param
        )

    def ended(self, sequence: Sequence, reason: FinishReason, error: PostroadError | None) -> None:
        """The request was admitted and has ended, whichever way."""
        phases = Phases.of(sequence)
        is_embedded = sequence.pooler is not None and reason is FinishReason.STOP
        outcome = "ok" if is_embedded else reason.name.lower() if error is None else error.reason.lower()
        counts = {
            "prompt_tokens": len(sequence.prompt_ids),
            "completion_tokens": len(sequence.output_ids),
            "cached_tokens": sequence.cached_tokens,
            "preemptions": sequence.preemptions,
        }
        self._metrics.request_ended(reason, counts["prompt_tokens"], phases)
        if sequence.grammar is not None:
            self._metrics.grammar_awaited(sequence.grammar_wait_ns / 1e9)
        start = sequence.arrival_ns + time.time_ns() - time.monotonic_ns()  # spans are on the wall clock
        for name, duration in phases.named():
            self._span.phase(name, start, start + duration)
            start += duration
        attributes: dict[str, str | int] = {"request_id": self._request_id, "outcome": outcome, **counts}
        self._span.end(attributes, None if error is None else error.message)
        times = {f"{name}_ms": round(duration / 1e6, 3) for name, duration in phases.named()}
        if sequence.grammar is not None:  # a part of schedule_wait
            times["grammar_wait_ms"] = round(sequence.grammar_wait_ns / 1e6, 3)
        self._log.info("request", **attributes, **times)


class RequestReporter:
    """Opens the records of a station."""

    def __init__(self, tracing: Tracing, metrics: EngineMetrics, log: FilteringBoundLogger) -> None:
        self._tracing = tracing
        self._metrics = metrics
        self._log = log

    def open(self, context: RequestContext) -> RequestRecord:
        return RequestRecord(context, self._tracing, self._metrics, self._log)
