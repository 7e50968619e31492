"""A histogram for what happens once per step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class StepHistogram(Collector):
    """Observed by one thread, read by the one that serves the metrics.

    prometheus_client's own takes a lock for every bucket that it passes: beside a step that has the caches to itself,
    ten times as long.
    """

    def __init__(self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        """`buckets`: the highest value that each one counts, ascending; whatever is higher has one more."""
        self._name = name
        self._text = text
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        names = [*map(floatToGoString, self._buckets), "+Inf"]
        counts = zip(names, accumulate(self._counts), strict=True)
        yield HistogramMetricFamily(self._name, self._text, buckets=list(counts), sum_value=self._sum)
