"""Whoever reads the metrics cannot tell it from prometheus_client's own histogram."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, enable_created_metrics
from prometheus_client.exposition import generate_latest

from services.engine.step_histogram import StepHistogram

BUCKETS = (0.001, 0.5, 1, 1024)


@pytest.fixture(autouse=True)
def _without_series_of_creation_times():
    disable_created_metrics()  # type: ignore[no-untyped-call]
    yield
    enable_created_metrics()  # type: ignore[no-untyped-call]


def _exposed(make: Callable[[CollectorRegistry], Histogram | StepHistogram], values: Sequence[float]) -> str:
    registry = CollectorRegistry()
    histogram = make(registry)
    for value in values:
        histogram.observe(value)
    return generate_latest(registry).decode()


@pytest.mark.parametrize("values", [[], [0.0, 0.001, 0.0011, 0.5, 0.75, 1, 7, 1024, 1024.5, 1e9]])
def test_it_is_exposed_like_the_library_s(values: list[float]) -> None:
    ours = _exposed(lambda registry: StepHistogram("steps", "Text.", BUCKETS, registry), values)
    library = _exposed(lambda registry: Histogram("steps", "Text.", buckets=BUCKETS, registry=registry), values)
    assert ours == library
