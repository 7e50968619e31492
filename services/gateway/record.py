"""What is known of one request, and its one report: a log line, metrics and a span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from structlog.typing import FilteringBoundLogger

from services.common.tracing import OpenSpan
from services.gateway.deltas import Ending, Usage
from services.gateway.metrics import GatewayMetrics
from services.gateway.timings import RequestTimes

CLIENT_CLOSED = 499  # nginx's number for a client that left; never sent


@dataclass(slots=True)
class RequestRecord:
    """Filled in as the request goes on."""

    request_id: str
    path: str
    span: OpenSpan
    api_key: str | None = None  # its name
    stream: bool = False
    answered: bool = False  # whole, to the last byte
    reason: str | None = None  # of a failure
    prompt_tokens: int | None = None
    endings: Sequence[Ending] = ()  # of all choices, once all have ended
    usage: Usage | None = None  # likewise
    times: RequestTimes = field(default_factory=RequestTimes)

    @property
    def outcome(self) -> str:
        """In a word, as in all stations: stop, length or ok; cancelled; or a failure's reason in small letters.

        Of several choices length tells more than stop.
        """
        if self.reason is not None:
            return self.reason
        if not self.answered:
            return "cancelled"
        reasons = {ending.finish_reason for ending in self.endings}
        return "length" if "length" in reasons else reasons.pop() if reasons else "ok"

    def fields(self) -> dict[str, Any]:
        """The log line's fields; times in milliseconds."""
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "path": self.path,
            "api_key": self.api_key,
            "outcome": self.outcome,
            "stream": self.stream,
            "prompt_tokens": self.prompt_tokens,
            "time_to_first_token_ms": self.times.time_to_first_token,
            **self.times.as_json(),
        }
        if self.usage is not None:
            fields |= {
                "choices": len(self.endings),
                "completion_tokens": self.usage.completion_tokens,
                "cached_tokens": self.usage.cached_tokens,
                "preemptions": sum(ending.times.preemptions for ending in self.endings),
            }
        return {name: _rounded(value) for name, value in fields.items() if value is not None}


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


class Reporter:
    """Reports each request once, when it has left the gateway."""

    def __init__(self, log: FilteringBoundLogger, metrics: GatewayMetrics) -> None:
        self._log = log
        self._metrics = metrics

    def report(self, record: RequestRecord, status: int) -> None:
        """`status`: the HTTP status that was sent, or CLIENT_CLOSED."""
        self._metrics.first_token(record.times)
        if record.answered and record.usage is not None:
            self._metrics.finished(record.times, [ending.usage.completion_tokens for ending in record.endings])
        if record.api_key is not None and record.usage is not None:
            self._metrics.key_used(record.api_key, record.usage)
        fields = record.fields()
        self._log.info("request", status=status, **fields)
        for name, start, end in record.times.spans():
            record.span.phase(name, start, end)
        record.span.end(fields, error=record.reason)
