"""What the detokenizer counts and times."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SHORT = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
_LONG = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


class DetokenizerMetrics:
    """The detokenizer's metrics, in a registry of their own."""

    def __init__(self, registry: CollectorRegistry, running: Callable[[], int]) -> None:
        self.own_seconds = Histogram(
            "postroad_detokenizer_time_seconds",
            "Time of a request in the detokenizer beside its engine call.",
            buckets=_SHORT,
            registry=registry,
        )
        self.hop_seconds = Histogram(
            "postroad_engine_hop_time_seconds",
            "Time of an engine call beside the engine's own phases.",
            buckets=_SHORT,
            registry=registry,
        )
        self.total_seconds = Histogram(
            "postroad_detokenizer_request_time_seconds",
            "A request's whole time in the detokenizer, its engine call included.",
            buckets=_LONG,
            registry=registry,
        )
        self.requests = Counter("postroad_detokenizer_requests", "Finished requests.", ["outcome"], registry=registry)
        self.tokens = Counter("postroad_detokenizer_tokens", "Tokens made into text.", registry=registry)
        self.messages = Counter("postroad_detokenizer_messages", "Messages sent to callers.", registry=registry)
        gauge = Gauge("postroad_detokenizer_requests_running", "Requests that run.", registry=registry)
        gauge.set_function(running)
