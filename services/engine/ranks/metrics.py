"""Metrics of ranks: what rank 0 knows of its group, and what a rank that follows knows of itself."""

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

STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


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


class FollowerMetrics:
    """Of a rank that does not lead: all that it has."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.in_group = Gauge("postroad_rank_in_group", "1 while the rank is in a group, else 0.", registry=registry)
        self.step_seconds = Histogram(
            "postroad_rank_step_seconds",
            "Time of a step on this rank, its waits for other ranks included; on a GPU, of its launch.",
            buckets=STEP_BUCKETS,
            registry=registry,
        )
