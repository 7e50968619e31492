from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from services.gateway.timings import PHASES
from tests.gateway.support.running import RawClient, RunningGateway, until


async def samples(gateway: RunningGateway) -> dict[tuple[str, tuple[str, ...]], float]:
    """Values by name and label values."""
    text = (await gateway.http.get("/metrics")).text
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_requests_are_counted_by_route_and_status(gateway: RunningGateway) -> None:
    await gateway.chat()
    await gateway.chat(stream=True)
    await gateway.chat(temperature=9)
    await gateway.http.get("/v1/models/smol")
    await gateway.http.get("/a/path/of/the/clients/making")
    client = await RawClient.connect(gateway.port)
    await client.post("/v1/completions", b"{", length=99)
    await until(lambda: len(gateway.gateway.live) == 1)
    assert (await samples(gateway))["postroad_http_requests_in_flight", ()] == 1
    await client.close()
    await until(lambda: len(gateway.gateway.live) == 0)
    await asyncio.sleep(0)
    found = await samples(gateway)
    name = "postroad_http_requests_total"
    assert found[name, ("/v1/chat/completions", "200")] == 2
    assert found[name, ("/v1/chat/completions", "400")] == 1
    assert found[name, ("/v1/models/{model}", "200")] == 1
    assert found[name, ("other", "404")] == 1
    assert found[name, ("/v1/completions", "499")] == 1
    assert found["postroad_http_requests_in_flight", ()] == 0


async def test_no_series_tells_when_another_was_made(gateway: RunningGateway) -> None:
    await gateway.chat()
    assert [name for name, _ in await samples(gateway) if name.endswith("_created")] == []


async def test_each_phase_of_a_finished_request_is_observed(gateway: RunningGateway) -> None:
    await gateway.chat()
    await until(lambda: len(gateway.request_lines()) == 1)
    found = await samples(gateway)
    for phase in PHASES:
        assert found["postroad_request_phase_seconds_count", (phase,)] == 1
    for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency"):
        assert found[f"postroad_{name}_seconds_count", ()] == 1


async def test_a_refused_request_has_no_latency(gateway: RunningGateway) -> None:
    await gateway.chat(temperature=9)
    await until(lambda: len(gateway.request_lines()) == 1)
    assert (await samples(gateway))["postroad_e2e_request_latency_seconds_count", ()] == 0
