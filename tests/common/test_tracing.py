"""Spans as a collector receives them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from services.common.tracing import Tracing
from tests.support.otlp import OtlpReceiver

TRACE_ID, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{CALLER}-01"


class Collector(OtlpReceiver):
    """Keeps attributes and status as well."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        self.raw += [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]
        return super().Export(request, context)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as receiver:
        assert isinstance(receiver, Collector)
        yield receiver


def test_a_span_is_a_child_of_the_caller_s_and_parent_of_its_phases(collector: Collector) -> None:
    tracing = Tracing("engine", collector.endpoint)
    before = time.time_ns()
    span = tracing.open("engine", TRACEPARENT)
    middle = time.time_ns()
    span.phase("prefill", before, middle)
    span.phase("decode", middle, middle)
    span.end({})
    tracing.close()
    by_name = {span.name: span for span in collector.spans}
    assert set(by_name) == {"engine", "prefill", "decode"}
    assert {(one.trace_id, one.service) for one in collector.spans} == {(TRACE_ID, "postroad-engine")}
    engine = by_name["engine"]
    assert engine.parent_id == CALLER
    assert before <= engine.start_ns <= middle <= engine.end_ns <= time.time_ns()
    for name, start, end in (("prefill", before, middle), ("decode", middle, middle)):
        phase = by_name[name]
        assert (phase.parent_id, phase.start_ns, phase.end_ns) == (engine.span_id, start, end)
    assert len({one.span_id for one in collector.spans}) == 3


def test_stations_pass_one_trace_on(collector: Collector) -> None:
    traceparent: str | None = None
    for station in ("gateway", "detokenizer", "engine"):
        tracing = Tracing(station, collector.endpoint)
        span = tracing.open(station, traceparent)
        traceparent = span.traceparent
        span.end({})
        tracing.close()
    gateway, detokenizer, engine = collector.spans
    assert [one.service for one in collector.spans] == ["postroad-gateway", "postroad-detokenizer", "postroad-engine"]
    assert [one.parent_id for one in collector.spans] == ["", gateway.span_id, detokenizer.span_id]
    assert {one.trace_id for one in collector.spans} == {gateway.trace_id}
    assert traceparent is not None
    version, trace_id, span_id, flags = traceparent.split("-")
    assert (version, trace_id, span_id) == ("00", gateway.trace_id, engine.span_id)
    assert int(flags, 16) & 1  # sampled


def test_attributes_and_errors(collector: Collector) -> None:
    tracing = Tracing("engine", collector.endpoint)
    tracing.open("fine", None).end({"postroad.tokens": 3, "postroad.stream": True})
    tracing.open("failed", None).end({}, "queue_full")
    tracing.close()
    fine, failed = collector.raw
    assert {one.key: one.value.WhichOneof("value") for one in fine.attributes} == {
        "postroad.tokens": "int_value",
        "postroad.stream": "bool_value",
    }
    assert (fine.status.code, fine.status.message) == (0, "")
    assert (failed.status.code, failed.status.message) == (2, "queue_full")
    assert fine.trace_id != failed.trace_id


def test_a_phase_that_never_was_is_left_out(collector: Collector) -> None:
    tracing = Tracing("engine", collector.endpoint)
    span = tracing.open("engine", None)
    span.phase("decode", 2, 1)
    span.end({})
    tracing.close()
    assert [one.name for one in collector.spans] == ["engine"]


def test_a_malformed_traceparent_begins_a_trace(collector: Collector) -> None:
    tracing = Tracing("engine", collector.endpoint)
    tracing.open("engine", "nonsense").end({})
    tracing.close()
    (span,) = collector.spans
    assert span.parent_id == ""
    assert int(span.trace_id, 16) != 0


def test_a_caller_that_is_not_sampled_stays_so(collector: Collector) -> None:
    tracing = Tracing("engine", collector.endpoint)
    span = tracing.open("engine", f"00-{TRACE_ID}-{CALLER}-00")
    span.phase("prefill", 1, 2)
    span.end({})
    tracing.close()
    assert collector.spans == []
    assert span.traceparent is not None
    assert span.traceparent.startswith(f"00-{TRACE_ID}-")
    assert span.traceparent.endswith("-00")


@pytest.mark.parametrize("traceparent", [None, TRACEPARENT])
def test_without_an_endpoint_the_traceparent_passes_through(traceparent: str | None) -> None:
    tracing = Tracing("engine", "")
    span = tracing.open("engine", traceparent)
    assert span.traceparent == traceparent
    span.phase("prefill", 1, 2)
    span.end({"postroad.tokens": 3}, "queue_full")
    tracing.close()
