"""A real gateway on a real port over scripted stations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import structlog

from services.common.tracing import Tracing
from services.gateway.gateway import Gateway
from services.gateway.server import run_gateway
from services.gateway.settings import GatewaySettings
from tests.gateway.support.stations import FakeStations
from tests.support.ports import free_ports

PATIENCE = 20.0  # seconds after which a condition that never comes is a failure


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Waits for a condition that nothing announces."""
    async with asyncio.timeout(PATIENCE):
        while True:
            value = condition()
            if value if isinstance(value, bool) else await value:
                return
            await asyncio.sleep(0.005)


class RunningGateway:
    """`http` talks to the gateway, `stations` is what it stands on, `lines` is what it logged."""

    def __init__(self, gateway: Gateway, stations: FakeStations, port: int, lines: list[Any]) -> None:
        self.gateway = gateway
        self.stations = stations
        self.port = port
        self.lines = lines
        self.stop = asyncio.Event()
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE)

    async def chat(self, content: Any = "hi", **fields: Any) -> httpx.Response:
        """One chat request."""
        messages = [{"role": "user", "content": content}]
        return await self.http.post("/v1/chat/completions", json={"messages": messages, **fields})

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        """One text completion."""
        return await self.http.post("/v1/completions", json={"prompt": prompt, **fields})

    async def is_ready(self) -> bool:
        try:
            return (await self.http.get("/ready")).status_code == 200
        except httpx.ConnectError:
            return False

    def request_lines(self) -> list[Any]:
        """The log lines of requests that have left."""
        return [line for line in self.lines if line["event"] == "request"]

    async def assert_idle(self) -> None:
        """Every per-request map of the gateway becomes empty, and no call runs behind it."""
        await until(lambda: not any(self.gateway.read_out()["requests"].values()))
        await until(lambda: self.stations.detokenizer.running == self.stations.tokenizer.running == 0)
        read_out = (await self.http.get("/debug/read_out")).json()
        assert read_out["requests"] == {"live_requests": 0, "request_scopes": 0, "engine_requests": 0, "waiting": 0}


@asynccontextmanager
async def running_gateway(engines: int = 1, **settings: Any) -> AsyncIterator[RunningGateway]:
    """Starts stations and gateway, waits until they serve, and stops them."""
    stations = FakeStations(engines)
    await stations.start()
    given = {
        "tokenizer": stations.tokenizer_host.address,
        "detokenizer": stations.detokenizer_host.address,
        "engines": ",".join(host.address for host in stations.engine_hosts),
        "port": free_ports(1)[0],
        "drain_timeout": 0.0,
    }
    capture = structlog.testing.LogCapture()
    log = structlog.wrap_logger(None, processors=[capture])
    gateway = Gateway(GatewaySettings(**{**given, **settings}), Tracing("gateway", ""), log)
    running = RunningGateway(gateway, stations, gateway.settings.port, capture.entries)
    task = asyncio.create_task(run_gateway(gateway, running.stop))
    try:
        await until(running.is_ready)
        yield running
    finally:
        await running.http.aclose()
        running.stop.set()
        await task
        await stations.stop()


def events(text: str) -> list[Any]:
    """The data of a stream's events: parsed JSON, and "[DONE]" as it is. Every line of the stream is accounted for."""
    assert text.endswith("\n\n")
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        assert block.startswith("data: ")
        assert "\n" not in block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def named_events(text: str) -> list[dict[str, Any]]:
    """The data of a stream's events, each of which is named after its type. Every line is accounted for."""
    assert text.endswith("\n\n")
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


class RawClient:
    """A plain TCP connection, for requests that a well-behaved client cannot send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: bytes, length: int | None = None, headers: str = "") -> None:
        """Sends a request; `length` may promise more than `body` has."""
        length = len(body) if length is None else length
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{headers}\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def read_until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readuntil(mark)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
