"""The stations behind the gateway: which of them serve now, and which engine gets the next request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.typing import FilteringBoundLogger

from services.common.channels import open_channel
from services.common.errors import NotReady
from services.pb.postroad.v1 import engine_pb2, engine_pb2_grpc

_POLL = 0.1  # seconds between two questions to a station that is not back yet
_CALL_TIMEOUT = 5.0  # seconds for GetModel, which answers at once

# A channel that is IDLE or CONNECTING after it was READY is on its way back: a server may ask its clients to connect
# anew now and then. Calls wait in the channel meanwhile, and if nothing comes of it, it fails within seconds.
_DOWN = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class Station:
    """A channel to a station (one address, or all of a name) and whether a call on it would be served now.

    gRPC's own client-side health checking watches the station's health service and reconnects; its verdict is the
    channel's state.
    """

    def __init__(self, name: str, address: str, service: str, log: FilteringBoundLogger) -> None:
        self.name = name
        self.address = address
        self.channel = open_channel(address, "round_robin", service)
        self.serving = asyncio.Event()
        self._service = service
        self._log = log.bind(peer=name, address=address)
        self._health = health_pb2_grpc.HealthStub(self.channel)

    async def watch(self) -> None:
        """Keeps `serving` up to date; runs until it is cancelled."""
        state = self.channel.get_state(try_to_connect=True)
        while True:
            if state is grpc.ChannelConnectivity.READY and await self._prepare():
                self._set_serving()
            elif state in _DOWN:
                self._set_not_serving()
            await self.channel.wait_for_state_change(state)
            state = self.channel.get_state(try_to_connect=True)

    async def confirm(self, until: float) -> bool:
        """Waits until the station says itself that it serves; False when `until` (time.monotonic()) comes first.

        For after a failed call: the channel's state may not have noticed the failure yet.
        """
        request = health_pb2.HealthCheckRequest(service=self._service)
        serving = health_pb2.HealthCheckResponse.SERVING
        while (left := until - time.monotonic()) > 0:
            try:
                reply = await self._health.Check(request, timeout=left, wait_for_ready=True)
                if reply.status == serving:
                    return True
            except grpc.aio.AioRpcError as error:
                self._log.debug("not back yet", cause=error.details())
            await asyncio.sleep(min(_POLL, left))
        return False

    async def close(self) -> None:
        """Closes the channel."""
        await self.channel.close()

    async def _prepare(self) -> bool:
        """What is to be done before the station counts as serving; False when the channel failed meanwhile."""
        return True

    def _set_serving(self) -> None:
        if not self.serving.is_set():
            self._log.info("serving")
        self.serving.set()

    def _set_not_serving(self) -> None:
        if self.serving.is_set():
            self._log.warning("not serving")
        self.serving.clear()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What an engine serves. `created` is Unix time in seconds, `embedding_size` the length of an embedding's list."""

    name: str
    max_model_len: int
    created: int
    embedding_size: int


class Engine(Station):
    """One engine replica: its model, and how many requests of this gateway it runs."""

    def __init__(self, address: str, log: FilteringBoundLogger, on_change: Callable[[], None]) -> None:
        super().__init__("engine", address, "postroad.v1.Engine", log)
        self.card: ModelCard | None = None  # of the last connection; kept while the engine is away
        self.in_flight = 0  # calls of this gateway that name the engine
        self._on_change = on_change
        self.stub = engine_pb2_grpc.EngineStub(self.channel)

    async def _prepare(self) -> bool:
        while self.channel.get_state() is grpc.ChannelConnectivity.READY:
            try:
                model = await self.stub.GetModel(engine_pb2.GetModelRequest(), timeout=_CALL_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                self._log.warning("GetModel failed", cause=error.details())
                await asyncio.sleep(_POLL)
                continue
            self.card = ModelCard(model.model, model.max_model_len, model.created, model.embedding_size)
            return True
        return False

    def _set_serving(self) -> None:
        super()._set_serving()
        self._on_change()

    def _set_not_serving(self) -> None:
        super()._set_not_serving()
        self._on_change()


class Engines:
    """The engine replicas. They serve the same model."""

    def __init__(self, addresses: list[str], log: FilteringBoundLogger) -> None:
        self.replicas = [Engine(address, log, self._update) for address in addresses]
        self._any_serving = asyncio.Event()

    @property
    def card(self) -> ModelCard | None:
        """The served model: of a serving replica, otherwise the one known last."""
        known = [engine for engine in self.replicas if engine.card is not None]
        return max(known, key=lambda engine: engine.serving.is_set()).card if known else None

    @property
    def in_flight(self) -> int:
        """Requests that run on any replica."""
        return sum(engine.in_flight for engine in self.replicas)

    @property
    def any_serving(self) -> bool:
        """Whether a replica serves now."""
        return self._any_serving.is_set()

    def least_busy(self, avoid: Engine | None = None) -> Engine | None:
        """The serving replica with the fewest requests; `avoid` only where there is no other. None: none serves."""
        serving = [engine for engine in self.replicas if engine.serving.is_set()]
        return min(serving, key=lambda engine: (engine is avoid, engine.in_flight), default=None)

    async def choose(self, until: float, avoid: Engine | None = None) -> Engine:
        """As `least_busy`, but waits for one until `until` (time.monotonic()), then raises NotReady."""
        while (engine := self.least_busy(avoid)) is None:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await self._any_serving.wait()
            except TimeoutError:
                raise NotReady("no engine is ready") from None
        return engine

    def _update(self) -> None:
        if any(engine.serving.is_set() for engine in self.replicas):
            self._any_serving.set()
        else:
            self._any_serving.clear()


class Stations:
    """Everything behind the gateway. `watch` runs beside the HTTP server."""

    def __init__(self, tokenizer: str, detokenizer: str, engines: list[str], log: FilteringBoundLogger) -> None:
        self.tokenizer = Station("tokenizer", tokenizer, "postroad.v1.Tokenizer", log)
        self.detokenizer = Station("detokenizer", detokenizer, "postroad.v1.Detokenizer", log)
        self.engines = Engines(engines, log)

    @property
    def missing(self) -> list[str]:
        """The kinds of station without which a request would not be served now."""
        singles = [station.name for station in (self.tokenizer, self.detokenizer) if not station.serving.is_set()]
        return singles if self.engines.any_serving else [*singles, "engine"]

    async def watch(self) -> None:
        """Watches all stations until it is cancelled; then closes their channels."""
        stations = [self.tokenizer, self.detokenizer, *self.engines.replicas]
        try:
            async with asyncio.TaskGroup() as group:
                for station in stations:
                    group.create_task(station.watch())
        finally:
            for station in stations:
                await station.close()
