from __future__ import annotations

from typing import Any

import structlog

from services.common.tracing import Tracing
from services.gateway.gateway import Gateway
from services.gateway.record import RequestRecord
from services.gateway.settings import GatewaySettings
from services.gateway.timings import RequestTimes
from tests.gateway.test_timings import marks
from tests.support.otlp import OtlpReceiver

MS = 1_000_000


def report(tracing: Tracing, times: RequestTimes, traceparent: str | None) -> str | None:
    """Reports one request and returns the traceparent that its stations got."""
    log: Any = structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()])
    settings = GatewaySettings.parse([])
    span = tracing.open("request", traceparent)
    record = RequestRecord("id", "/v1/completions", span, answered=True, times=times)
    Gateway(settings, tracing, log).reporter.report(record, 200)
    tracing.close()
    return span.traceparent


async def test_one_root_span_with_the_phases_as_children() -> None:
    with OtlpReceiver() as receiver:
        traceparent = report(Tracing("gateway", receiver.endpoint), marks(), None)
    assert traceparent is not None
    _, trace_id, root_id, _ = traceparent.split("-")
    spans = {span.name: span for span in receiver.trace(trace_id)}
    assert set(spans) == {"request", "queue", "tokenise", "generate", "send"}
    assert spans["request"].span_id == root_id
    assert spans["request"].parent_id == ""
    assert {spans[name].parent_id for name in ("queue", "tokenise", "generate", "send")} == {root_id}
    lengths = {name: (span.end_ns - span.start_ns) // MS for name, span in spans.items() if name != "request"}
    assert lengths == {"queue": 1, "tokenise": 3, "generate": 100, "send": 3}


async def test_the_clients_trace_goes_on() -> None:
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with OtlpReceiver() as receiver:
        traceparent = report(Tracing("gateway", receiver.endpoint), marks(), given)
    assert traceparent is not None
    assert traceparent.split("-")[1] == "4bf92f3577b34da6a3ce929d0e0e4736"
    [root] = [span for span in receiver.spans if span.name == "request"]
    assert root.parent_id == "00f067aa0ba902b7"
