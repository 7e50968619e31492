from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.gateway.deltas import EngineStart, StationTimes
from services.gateway.timings import PHASES, RequestTimes, RunTimes
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RunningGateway, events, until
from tests.gateway.support.stations import end, first

MS = 1_000_000


def marks() -> RequestTimes:
    return RequestTimes(
        arrival=1 * MS,
        tokenise_start=2 * MS,
        tokenise_end=5 * MS,
        end=110 * MS,
        runs=[
            RunTimes(
                generate_start=7 * MS,
                first_delta=50 * MS,
                generate_end=107 * MS,
                stations=StationTimes(10_000, 20_000, 40_000, 5_000, 6_000, 90_000, 0),
            )
        ],
    )


def test_phases_do_not_overlap_and_add_up_to_the_total() -> None:
    phases = marks().phases()
    assert phases == {
        "queue": 3.0,
        "tokenise": 3.0,
        "schedule_wait": 10.0,
        "prefill": 20.0,
        "decode": 40.0,
        "detokenise": 5.0,
        "hops": 16.0,
        "send": 3.0,
    }
    assert tuple(phases) == PHASES
    detokenizer_total = 10 + 20 + 40 + 5 + 6
    assert sum(phases.values()) == marks().total - (90 - detokenizer_total)


def test_at_the_first_token_the_phases_until_then_are_known() -> None:
    times = marks()
    [run] = times.runs
    run.stations, times.end = None, 0
    run.engine_start = EngineStart(schedule_wait_us=10_000, prefill_us=20_000)
    assert tuple(times.phases()) == ("queue", "tokenise", "schedule_wait", "prefill")
    assert times.time_to_first_token == 49.0


def test_token_id_prompts_have_no_tokenise_phase() -> None:
    times = marks()
    times.tokenise_start = times.tokenise_end = 0
    assert "tokenise" not in times.phases()
    assert times.phases()["queue"] == 6.0


def test_of_several_runs_the_last_to_end_tells_the_phases_and_the_first_token_is_that_of_any() -> None:
    times = marks()
    [waited_for] = times.runs
    early = StationTimes(1_000, 2_000, 3_000, 4_000, 5_000, 15_000, 0)
    times.runs.append(RunTimes(generate_start=7 * MS, first_delta=11 * MS, generate_end=22 * MS, stations=early))
    assert times.phases() == marks().phases()
    assert times.time_to_first_token == 10.0
    waited_for.generate_end, waited_for.stations, waited_for.engine_start = 0, None, EngineStart(10_000, 20_000)
    assert times.phases()["prefill"] == 2.0, "while one is still running, of those that have ended"


async def script(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
    yield first("x", schedule_wait_us=1000, prefill_us=2000)
    yield end("y", schedule_wait_us=1000, prefill_us=2000, decode_us=3000, detokenize_us=500, engine_hop_us=250)


def header_phases(value: str) -> dict[str, float]:
    found = re.fullmatch(r"(\w+;dur=\d+\.\d{3})(, \w+;dur=\d+\.\d{3})*", value)
    assert found, value
    return {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", value)}


async def test_server_timing_and_timings_of_a_whole_answer(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = script
    response = await gateway.chat(timings=True)
    header = header_phases(response.headers["server-timing"])
    assert list(header) == [*PHASES, "total"]
    assert (header["schedule_wait"], header["prefill"], header["decode"], header["detokenise"]) == (1, 2, 3, 0.5)
    timings = response.json()["timings"]
    assert list(timings) == [f"{name}_ms" for name in [*PHASES, "total"]]
    assert timings["decode_ms"] == 3
    assert all(value >= 0 for value in timings.values())
    assert "timings" not in (await gateway.chat()).json()


@pytest.mark.parametrize("include_usage", [True, False])
async def test_server_timing_and_timings_of_a_stream(gateway: RunningGateway, include_usage: bool) -> None:
    gateway.stations.detokenizer.script = script
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    response = await gateway.chat(stream=True, timings=True, **options)
    header = header_phases(response.headers["server-timing"])
    assert list(header) == ["queue", "tokenise", "schedule_wait", "prefill", "total"]
    *others, last, _done = events(response.text)
    assert last["timings"]["decode_ms"] == 3
    assert all("timings" not in chunk for chunk in others)


async def test_one_log_line_per_request_with_all_phases(gateway: RunningGateway) -> None:
    gateway.stations.detokenizer.script = script
    response = await gateway.chat()
    await until(lambda: len(gateway.request_lines()) == 1)
    [line] = gateway.request_lines()
    assert line["request_id"] == response.headers["x-request-id"]
    assert (line["outcome"], line["status"]) == ("stop", 200)
    assert (line["prompt_tokens"], line["completion_tokens"], line["cached_tokens"]) == (8, 2, 3)
    assert {f"{name}_ms" for name in PHASES} < set(line)
    assert line["total_ms"] >= line["time_to_first_token_ms"]


async def test_a_failed_request_logs_its_reason(gateway: RunningGateway) -> None:
    await gateway.chat(temperature=9)
    await until(lambda: len(gateway.request_lines()) == 1)
    [line] = gateway.request_lines()
    assert (line["outcome"], line["status"]) == ("invalid_value", 400)
