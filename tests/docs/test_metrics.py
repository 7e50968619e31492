"""docs/metrics.md against the metrics that each station makes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from services.detokenizer.metrics import DetokenizerMetrics
from services.engine.metrics import EngineMetrics
from services.engine.ranks.metrics import FollowerMetrics
from services.engine.scheduler.sequence import FinishReason
from services.gateway.metrics import GatewayMetrics
from services.gateway.timings import PHASES
from services.tokenizer.metrics import TokenizerMetrics
from tests.docs.pages import by_code, codes, table

PAGE = "metrics.md"
STATIONS: dict[str, Callable[[CollectorRegistry], object]] = {
    "gateway": lambda registry: GatewayMetrics(registry, lambda: 0),
    "tokenizer": lambda registry: TokenizerMetrics(registry, lambda: 0),
    "detokenizer": lambda registry: DetokenizerMetrics(registry, lambda: 0),
    "engine": EngineMetrics,
    "rank": FollowerMetrics,
}


class NotingRegistry(CollectorRegistry):
    """Notes the label names of what is registered: a metric without children shows none when it is collected."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: dict[str, list[str]] = {}

    def register(self, collector: Collector) -> None:
        super().register(collector)
        for metric in collector.collect():
            self.labels[metric.name] = list(getattr(collector, "_labelnames", ()))


@pytest.mark.parametrize("station", STATIONS)
def test_metrics_of_a_station(station: str) -> None:
    registry = NotingRegistry()
    STATIONS[station](registry)
    made = {
        metric.name + ("_total" if metric.type == "counter" else ""): (metric.type, registry.labels[metric.name])
        for metric in registry.collect()
    }
    rows = by_code(table(PAGE, station), "name")
    assert {name: (row["type"], codes(row["labels"])) for name, row in rows.items()} == made
    for name, row in rows.items():
        assert (row["unit"] == "seconds") == name.endswith("_seconds"), name
        assert row["meaning"], name


def test_values_of_the_labels_that_are_fixed() -> None:
    phases = by_code(table(PAGE, "gateway"), "name")["postroad_request_phase_seconds"]["meaning"]
    assert codes(phases) == list(PHASES)
    reasons = by_code(table(PAGE, "engine"), "name")["postroad_request_success_total"]["meaning"]
    assert codes(reasons) == [reason.name.lower() for reason in FinishReason]
    described = [row["phase"].strip("`") for row in table("architecture.md", "The time of a request")]
    assert described == list(PHASES)
