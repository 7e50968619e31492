"""The engine's span of a request and its three phases."""

from __future__ import annotations

import asyncio

import pytest

from services.common.errors import InvalidArgument
from tests.engine.running_engine import GatedExecutor, request, running_engine, scripted
from tests.support.otlp import OtlpReceiver

TRACE_ID, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(receiver):
    """The engine's spans and their children, in order of time."""
    engine = [span for span in receiver.spans if span.name == "engine"]
    children = sorted((span for span in receiver.spans if span.name != "engine"), key=lambda span: span.start_ns)
    return engine, children


async def test_a_span_below_the_caller_s_with_its_phases_one_after_another():
    with OtlpReceiver() as receiver:
        async with running_engine(scripted(10, 11), otlp_endpoint=receiver.endpoint) as engine:
            metadata = (("traceparent", f"00-{TRACE_ID}-{CALLER}-01"),)
            await engine.generate(request(max_tokens=3), metadata=metadata)
        (span,), phases = spans_of(receiver)
        assert (span.service, span.trace_id, span.parent_id) == ("postroad-engine", TRACE_ID, CALLER)
        assert [phase.name for phase in phases] == ["schedule_wait", "prefill", "decode"]
        assert {phase.parent_id for phase in phases} == {span.span_id}
        assert span.start_ns <= phases[0].start_ns
        assert [phase.start_ns for phase in phases[1:]] == [phase.end_ns for phase in phases[:-1]]
        assert phases[-1].end_ns <= span.end_ns


async def test_refused_and_cancelled_requests_have_a_span_too():
    gate = GatedExecutor(scripted(10))
    with OtlpReceiver() as receiver:
        async with running_engine(gate, otlp_endpoint=receiver.endpoint) as engine:
            with pytest.raises(InvalidArgument):
                await engine.generate(request([]))
            call = asyncio.create_task(engine.generate(request()))
            await gate.step_entered()
            call.cancel()
            await engine.until_handlers_gone()
            gate.allow(2)
            await engine.until_idle()
        assert len(spans_of(receiver)[0]) == 2
