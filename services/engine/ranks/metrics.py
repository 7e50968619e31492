"""Rank 0's metrics of its group."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PLAN_BUCKETS = (
    0.0001,
    0.0002,
    0.0003,
    0.0005,
    0.00075,
    0.001,
    0.0015,
    0.002,
    0.003,
    0.005,
    0.01,
    0.025,
    0.1,
    0.5,
    5.0,
)


class RankMetrics:
    """Of an engine with one rank all of them stay as they begin."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge("postroad_ranks_connected", "Ranks in touch, rank 0 included.", registry=registry)
        self.connected.set(1)
        self.formed = Counter(
            "postroad_rank_groups_formed", "Times that all ranks came together, the first included.", registry=registry
        )
        self.plan_seconds = Histogram(
            "postroad_rank_plan_seconds",
            "From a step's plan to the word of the last rank that it has begun it: there and back.",
            buckets=_PLAN_BUCKETS,
            registry=registry,
        )
