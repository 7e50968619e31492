from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.pb.postroad.v1 import detokenizer_pb2, engine_pb2
from tests.gateway.support.running import RunningGateway, running_gateway, until
from tests.gateway.support.stations import end, first


async def test_fieldbug_28_ready_follows_the_health_of_each_station(gateway: RunningGateway) -> None:
    stations = gateway.stations
    for name, host in (
        ("tokenizer", stations.tokenizer_host),
        ("detokenizer", stations.detokenizer_host),
        ("engine", stations.engine_hosts[0]),
    ):
        await host.set_serving(False)

        async def names_it(name: str = name) -> bool:
            response = await gateway.http.get("/ready")
            if response.status_code == 200:
                return False
            assert response.headers["retry-after"]
            return bool(response.json()["error"]["message"] == f"not serving: {name}")

        await until(names_it)
        assert (await gateway.http.get("/health")).status_code == 200
        await host.set_serving(True)
        await until(gateway.is_ready)


async def test_fieldbug_28_ready_notices_a_killed_station_and_its_return(gateway: RunningGateway) -> None:
    for host in gateway.stations.hosts:
        await host.kill()

        async def not_ready() -> bool:
            return not await gateway.is_ready()

        await until(not_ready)
        await host.start()
        await until(gateway.is_ready)


async def test_requests_go_to_the_engine_with_the_fewest() -> None:
    release = asyncio.Event()

    async def held(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("x")
        await release.wait()
        yield end()

    async with running_gateway(engines=3) as gateway:
        await until(lambda: all(e.serving.is_set() for e in gateway.gateway.stations.engines.replicas))
        gateway.stations.detokenizer.script = held
        answers = []
        for _ in range(9):
            answers.append(asyncio.create_task(gateway.chat()))
            await until(lambda: gateway.gateway.stations.engines.in_flight == len(answers))
        assert [engine.in_flight for engine in gateway.gateway.stations.engines.replicas] == [3, 3, 3]
        release.set()
        assert {response.status_code for response in await asyncio.gather(*answers)} == {200}
        await gateway.assert_idle()


async def test_an_engine_that_does_not_serve_gets_no_request() -> None:
    async with running_gateway(engines=2) as gateway:
        replicas = gateway.gateway.stations.engines.replicas
        await until(lambda: all(engine.serving.is_set() for engine in replicas))
        await gateway.stations.engine_hosts[0].set_serving(False)
        await until(lambda: not replicas[0].serving.is_set())
        for _ in range(4):
            assert (await gateway.chat()).status_code == 200
        chosen = {context.engine for context in gateway.stations.detokenizer.contexts}
        assert chosen == {gateway.stations.engine_hosts[1].address}
        assert await gateway.is_ready()


async def test_the_model_is_asked_for_again_after_a_reconnect(gateway: RunningGateway) -> None:
    [engine], [host] = gateway.stations.engines, gateway.stations.engine_hosts
    await host.kill()
    await until(lambda: not gateway.gateway.stations.engines.any_serving)
    listed = (await gateway.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["smol"], "known while the engine is away"
    engine.model = engine_pb2.GetModelResponse(model="other", max_model_len=9, created=5)
    await host.start()
    await until(gateway.is_ready)
    [model] = (await gateway.http.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("other", 9)


@pytest.mark.parametrize("name", ["smol", "default"])
async def test_models(gateway: RunningGateway, name: str) -> None:
    expected = {"id": "smol", "object": "model", "created": 1700000000, "owned_by": "postroad", "max_model_len": 2048}
    assert (await gateway.http.get("/v1/models")).json() == {"object": "list", "data": [expected]}
    assert (await gateway.http.get(f"/v1/models/{name}")).json() == expected


async def test_another_model_is_not_found(gateway: RunningGateway) -> None:
    response = await gateway.http.get("/v1/models/some/other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
