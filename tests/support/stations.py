"""Tokenizer and detokenizer on real ports, in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from services.common.channels import open_channel
from services.detokenizer.settings import DetokenizerSettings
from services.detokenizer.station import SERVICE as DETOKENIZER
from services.detokenizer.station import DetokenizerStation
from services.pb.postroad.v1 import debug_pb2, debug_pb2_grpc, detokenizer_pb2_grpc, tokenizer_pb2_grpc
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.station import SERVICE as TOKENIZER
from services.tokenizer.station import TokenizerStation
from tests.support.polling import until


@dataclass
class RunningStation:
    """A client's view of a station. `stub` is that of the station's own service."""

    station: TokenizerStation | DetokenizerStation
    service: str
    channel: grpc.aio.Channel
    stub: Any
    registry: CollectorRegistry
    logs: list[Any]

    async def read_out(self) -> dict[str, int]:
        """Sizes of the station's per-request maps."""
        response = await debug_pb2_grpc.DebugStub(self.channel).ReadOut(debug_pb2.ReadOutRequest())
        return dict(response.requests)

    async def until(self, condition: Callable[[dict[str, int]], bool]) -> None:
        """Returns when a read-out meets the condition."""

        async def is_met() -> bool:
            return condition(await self.read_out())

        await until(is_met)

    async def until_idle(self) -> None:
        """Returns when every per-request map is empty."""
        await self.until(lambda requests: not any(requests.values()))

    async def health(self) -> str:
        response = await health_pb2_grpc.HealthStub(self.channel).Check(
            health_pb2.HealthCheckRequest(service=self.service)
        )
        return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)

    async def until_serving(self) -> None:
        """Returns when the station says that it would serve a request now."""

        async def is_serving() -> bool:
            return await self.health() == "SERVING"

        await until(is_serving)

    def request_logs(self) -> list[Any]:
        return [entry for entry in self.logs if entry["event"] == "request"]


@asynccontextmanager
async def running_tokenizer(engine: str, *, wait: bool = True, **settings: Any) -> AsyncIterator[RunningStation]:
    """A tokenizer that takes its files from the engine at host:port `engine`; serving already if `wait`."""
    parsed = TokenizerSettings(port=0, metrics_port=0, **{"engine": engine, "drain_timeout": 0, **settings})
    log, logs = _captured_log()
    registry = CollectorRegistry()
    station = TokenizerStation(parsed, registry, log)
    async with _running(station, TOKENIZER, tokenizer_pb2_grpc.TokenizerStub, registry, logs) as running:
        if wait:
            await running.until_serving()
        yield running


@asynccontextmanager
async def running_detokenizer(engine: str, *, wait: bool = True, **settings: Any) -> AsyncIterator[RunningStation]:
    """A detokenizer whose engine is at host:port `engine`; serving already if `wait`."""
    parsed = DetokenizerSettings(port=0, metrics_port=0, **{"engine": engine, "drain_timeout": 0, **settings})
    log, logs = _captured_log()
    registry = CollectorRegistry()
    station = DetokenizerStation(parsed, registry, log)
    async with _running(station, DETOKENIZER, detokenizer_pb2_grpc.DetokenizerStub, registry, logs) as running:
        if wait:
            await running.until_serving()
        yield running


@asynccontextmanager
async def _running(
    station: TokenizerStation | DetokenizerStation, service: str, stub: Any, registry: CollectorRegistry, logs: Any
) -> AsyncIterator[RunningStation]:
    await station.start()
    serving = asyncio.create_task(station.run_until_stopped())
    async with open_channel(f"127.0.0.1:{station.port}") as channel:
        try:
            yield RunningStation(station, service, channel, stub(channel), registry, logs)
        finally:
            await channel.close()
            station.request_stop()
            await serving


def _captured_log() -> tuple[Any, list[Any]]:
    capture = LogCapture()
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[structlog.stdlib.add_log_level, capture])
    return log, capture.entries
