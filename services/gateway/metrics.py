"""The gateway's Prometheus metrics, named after vLLM's where there is such a one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.gateway.deltas import Usage
from services.gateway.timings import PHASES, RequestTimes

_PHASE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FIRST_TOKEN_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
    20,
    40,
    80,
    160,
)
_PER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_MS = 1e3


class GatewayMetrics:
    """`in_flight` says how many requests are being served."""

    def __init__(self, registry: CollectorRegistry, in_flight: Callable[[], int]) -> None:
        self._requests = Counter(
            "postroad_http_requests", "HTTP requests by route and status.", ["path", "status"], registry=registry
        )
        self._key_requests = Counter(
            "postroad_api_key_requests", "HTTP requests by API key and status.", ["key", "status"], registry=registry
        )
        self._key_tokens = Counter(
            "postroad_api_key_tokens",
            "Tokens of finished requests by API key and kind: prompt or completion.",
            ["key", "kind"],
            registry=registry,
        )
        phase = Histogram(
            "postroad_request_phase_seconds",
            "Time of a finished request by phase; the phases add up to the whole.",
            ["phase"],
            buckets=_PHASE_BUCKETS,
            registry=registry,
        )
        self._phases = {name: phase.labels(name) for name in PHASES}
        self._first_token = Histogram(
            "postroad_time_to_first_token_seconds",
            "Arrival to first token.",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._per_token = Histogram(
            "postroad_time_per_output_token_seconds",
            "Mean time per token after the first one, one observation per choice.",
            buckets=_PER_TOKEN_BUCKETS,
            registry=registry,
        )
        self._whole = Histogram(
            "postroad_e2e_request_latency_seconds", "Arrival to last byte.", buckets=_PHASE_BUCKETS, registry=registry
        )
        gauge = Gauge("postroad_http_requests_in_flight", "Requests that are being served.", registry=registry)
        gauge.set_function(in_flight)

    def answered(self, path: str, status: int) -> None:
        """Counts an answer; `path` is a route, not what the client wrote; 499 stands for a client that left."""
        self._requests.labels(path, str(status)).inc()

    def answered_key(self, key: str, status: int) -> None:
        """Counts an answer to a request with an API key; `key` is the key's name."""
        self._key_requests.labels(key, str(status)).inc()

    def key_used(self, key: str, usage: Usage) -> None:
        """Counts the tokens of a finished request."""
        self._key_tokens.labels(key, "prompt").inc(usage.prompt_tokens)
        self._key_tokens.labels(key, "completion").inc(usage.completion_tokens)

    def first_token(self, times: RequestTimes) -> None:
        """Observes the time to the first token, of any request that had one."""
        if times.time_to_first_token is not None:
            self._first_token.observe(times.time_to_first_token / _MS)

    def finished(self, times: RequestTimes, completion_tokens: Sequence[int]) -> None:
        """Observes a request that ran to its end. `completion_tokens`: of each of `times.runs`."""
        for name, milliseconds in times.phases().items():
            self._phases[name].observe(milliseconds / _MS)
        self._whole.observe(times.total / _MS)
        for run, tokens in zip(times.runs, completion_tokens, strict=True):
            if tokens > 1:
                self._per_token.observe((run.generate_end - run.first_delta) / 1e9 / (tokens - 1))
