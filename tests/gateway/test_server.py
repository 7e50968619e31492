"""The server's limits, and the graceful stop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import structlog

from services.gateway.server import raise_descriptor_limit
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RawClient, events, running_gateway, until
from tests.gateway.support.stations import FakeStations, end, first
from tests.support.ports import free_ports


async def test_the_settings_bound_what_a_client_may_do() -> None:
    async with running_gateway(max_header_bytes=1024, header_timeout=2.0, max_connections=3) as gateway:
        large = await gateway.http.get("/health", headers={"x": "y" * 1024})
        assert (large.status_code, large.json()["error"]["code"]) == (431, "headers_too_large")
        slow = await RawClient.connect(gateway.port)
        slow.writer.write(b"GET")
        clients = [await RawClient.connect(gateway.port) for _ in range(3)]
        assert (await clients[-1].read_until(b"\r\n")).startswith(b"HTTP/1.1 503")
        assert (await slow.read_until(b"\r\n")).startswith(b"HTTP/1.1 408")
        for client in (slow, *clients):
            await client.close()


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """A process that may have few files open, and may allow itself so many more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_descriptor_for_each_connection(few_descriptors: int) -> None:
    log = structlog.testing.CapturingLogger()
    raise_descriptor_limit(few_descriptors, log)  # type: ignore[arg-type]
    raised, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raised > few_descriptors
    raise_descriptor_limit(1, log)  # type: ignore[arg-type]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, hard), "it never takes any away"
    assert not log.calls
    if hard == resource.RLIM_INFINITY:
        return
    raise_descriptor_limit(hard, log)  # type: ignore[arg-type]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    [call] = log.calls
    assert call.kwargs["allowed"] == hard


async def test_a_stop_lets_running_requests_finish_and_refuses_new_ones() -> None:
    release = asyncio.Event()

    async def held(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("a")
        await release.wait()
        yield end("b")

    async with running_gateway(drain_timeout=20.0) as gateway:
        gateway.stations.detokenizer.script = held
        running = asyncio.create_task(gateway.chat(stream=True))
        await gateway.stations.detokenizer.entered.wait()
        gateway.stop.set()
        await until(lambda: gateway.gateway.draining)
        for response in (await gateway.http.get("/ready"), await gateway.chat()):
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert response.json()["error"]["code"] == "draining"
        assert (await gateway.http.get("/health")).status_code == 200
        release.set()
        assert events((await running).text)[-1] == "[DONE]"


async def test_requests_that_outlast_the_drain_end_with_an_error() -> None:
    async def stuck(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("a")
        await asyncio.Event().wait()

    async with running_gateway(drain_timeout=0.2) as gateway:
        gateway.stations.detokenizer.script = stuck
        stream = asyncio.create_task(gateway.chat(stream=True))
        whole = asyncio.create_task(gateway.chat())
        await until(lambda: gateway.stations.detokenizer.running == 2)
        gateway.stop.set()
        assert events((await stream).text)[-1]["error"]["code"] == "draining"
        assert (await whole).status_code == 503
        await asyncio.wait_for(gateway.stations.detokenizer.left.wait(), 10)


async def test_the_process_serves_and_stops_on_sigterm() -> None:
    stations, port = FakeStations(), free_ports(1)[0]
    await stations.start()
    addresses = {
        "--port": str(port),
        "--tokenizer": stations.tokenizer_host.address,
        "--detokenizer": stations.detokenizer_host.address,
        "--engines": stations.engine_hosts[0].address,
    }
    flags = [part for pair in addresses.items() for part in pair]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.gateway", *flags, stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

            async def ready() -> bool:
                try:
                    return (await http.get("/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(ready)
            body = {"messages": [{"role": "user", "content": "x"}]}
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        process.send_signal(signal.SIGTERM)
        output, _ = await asyncio.wait_for(process.communicate(), 20)
    finally:
        if process.returncode is None:
            process.kill()
        await stations.stop()
    assert process.returncode == 0
    lines = output.decode().splitlines()
    assert any('"event": "request"' in line and '"outcome": "stop"' in line for line in lines)
    assert '"event": "stopped"' in lines[-1]
