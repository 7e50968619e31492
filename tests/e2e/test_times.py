"""Where a request's time goes: the stations' times add up, and one request is one trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.e2e.client import Client, until, user
from tests.support.otlp import OtlpReceiver
from tests.support.stack import Stack

PHASES = ("queue", "tokenise", "schedule_wait", "prefill", "decode", "detokenise", "hops", "send")


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced_stack(receiver: OtlpReceiver) -> Iterator[Stack]:
    with Stack(engine_flags="--dtype float32", env={"POSTROAD_OTLP_ENDPOINT": receiver.endpoint}) as stack:
        yield stack


async def test_the_stations_times_add_up_to_what_50_mixed_clients_waited(traced_stack: Stack) -> None:
    async def one(client: Client, number: int) -> tuple[float, dict[str, float]]:
        content = f"Question {number}: " + "why " * (1 + 40 * (number % 5))
        body = {"messages": user(content), "max_tokens": 4 + number % 13, "timings": True, "temperature": 0}
        start = time.perf_counter()
        timings = (await client.stream(**body)).timings if number % 2 else (await client.whole(**body)).get("timings")
        assert timings is not None
        return time.perf_counter() - start, timings

    async with Client(traced_stack) as client:
        results = await asyncio.gather(*(one(client, number) for number in range(50)))
    for waited, timings in results:
        accounted = sum(timings[f"{phase}_ms"] for phase in PHASES) / 1000
        assert 0.9 * waited <= accounted <= waited * 1.01, (waited, timings)


async def test_one_request_is_one_trace_over_four_services(traced_stack: Stack, receiver: OtlpReceiver) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with Client(traced_stack) as client:
        response = await client.http.post(
            "/v1/chat/completions",
            json={"messages": user("hello"), "max_tokens": 5},
            headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01", "x-request-id": "traced-1"},
        )
        assert response.status_code == 200
    wanted = {f"postroad-{name}" for name in ("gateway", "tokenizer", "detokenizer", "engine")}

    async def complete() -> bool:
        return {span.service for span in receiver.trace(trace_id)} >= wanted

    await until(complete, 15, lambda: f"spans: {receiver.trace(trace_id)}")
    spans = receiver.trace(trace_id)
    names = {span.name for span in spans}
    assert names >= {"queue", "tokenise", "schedule_wait", "prefill", "decode", "detokenise", "send"}
    ids = {span.span_id for span in spans}
    outside = [span for span in spans if span.parent_id not in ids]
    assert [span.parent_id for span in outside] == ["00f067aa0ba902b7"]  # one root, below the client's span
    assert outside[0].service == "postroad-gateway"
    assert all(span.start_ns <= span.end_ns for span in spans)


async def test_server_timing_names_the_phases(traced_stack: Stack) -> None:
    async with Client(traced_stack) as client:
        response = await client.post("/v1/chat/completions", messages=user("hello"), max_tokens=5)
        header = response.headers["server-timing"]
        assert [part.split(";")[0].strip() for part in header.split(",")][: len(PHASES)] == list(PHASES)
        assert all(float(part.split("dur=")[1]) >= 0 for part in header.split(","))


async def test_each_station_logs_one_line_per_request_with_its_id(traced_stack: Stack) -> None:
    async with Client(traced_stack) as client:
        response = await client.http.post(
            "/v1/chat/completions",
            json={"messages": user("hello"), "max_tokens": 5},
            headers={"x-request-id": "logged-once"},
        )
        assert response.status_code == 200

    def lines(name: str) -> list[str]:
        return [line for line in traced_stack.log_text(name).splitlines() if "logged-once" in line]

    async def all_logged() -> bool:
        return all(lines(name) for name in traced_stack.pids())

    await until(all_logged, 10, lambda: str({name: lines(name) for name in traced_stack.pids()}))
    assert {name: len(lines(name)) for name in traced_stack.pids()} == dict.fromkeys(traced_stack.pids(), 1)
