"""What the tokenizer counts and times."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class TokenizerMetrics:
    """The tokenizer's metrics, in a registry of their own."""

    def __init__(self, registry: CollectorRegistry, pending: Callable[[], int]) -> None:
        self.seconds = Histogram(
            "postroad_tokenizer_time_seconds",
            "Time of a request in the tokenizer.",
            ["method"],
            buckets=SECONDS,
            registry=registry,
        )
        self.requests = Counter(
            "postroad_tokenizer_requests", "Finished requests.", ["method", "outcome"], registry=registry
        )
        self.tokens = Counter("postroad_tokenizer_tokens", "Tokens made from texts.", registry=registry)
        waiting = Gauge("postroad_tokenizer_requests_pending", "Requests that wait or run.", registry=registry)
        waiting.set_function(pending)
