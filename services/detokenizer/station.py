"""The detokenizer as a station: transport, RPCs and server put together, and the files fetched from the engine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from services.common.live_requests import LiveRequests
from services.common.servers import StationServer
from services.common.tokenizer_files import serve_with_files
from services.common.tracing import Tracing
from services.detokenizer.engine_calls import CallTransport
from services.detokenizer.engine_frames import FrameTransport
from services.detokenizer.metrics import DetokenizerMetrics
from services.detokenizer.pacing import Pacer
from services.detokenizer.reporting import Reporter
from services.detokenizer.service import SERVICE, DetokenizerService, register
from services.detokenizer.settings import DetokenizerSettings
from services.detokenizer.token_sink import EngineTransport
from services.pb.postroad.v1 import engine_pb2


class DetokenizerStation:
    """Listens at once, serves when the files have arrived. To be made on a running event loop."""

    def __init__(self, settings: DetokenizerSettings, registry: CollectorRegistry, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._live = LiveRequests()
        self._transport = _make_transport(settings, log)
        self._tracing = Tracing(settings.station, settings.otlp_endpoint)
        self._service = DetokenizerService(
            engine=settings.engine,
            transport=self._transport,
            pacer=Pacer(settings.pace_ms / 1000, self._live.__len__),
            live=self._live,
            reporter=Reporter(DetokenizerMetrics(registry, self._live.__len__), log),
            tracing=self._tracing,
            log=log,
        )
        self._server = StationServer(
            SERVICE,
            f"{settings.host}:{settings.port}",
            self._service.read_out,
            log,
            max_connection_age=settings.max_connection_age,
        )
        register(self._service, self._server.server)

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Opens the port."""
        await self._server.start()

    def request_stop(self) -> None:
        """What SIGTERM does."""
        self._server.request_stop()

    async def run_until_stopped(self) -> bool:
        """Fetches the files and serves until SIGTERM or SIGINT, then drains and stops. False if it failed."""
        settings = self._settings
        succeeded = await serve_with_files(
            self._server,
            settings.engine,
            self._load,
            live=self._live,
            drain_timeout=settings.drain_timeout,
            log=self._log,
        )
        await self._transport.close()
        self._tracing.close()
        return succeeded

    async def _load(self, files: Mapping[str, bytes], model: engine_pb2.GetModelResponse) -> None:
        await self._service.load(files, model.vocab_size)


def _make_transport(settings: DetokenizerSettings, log: FilteringBoundLogger) -> EngineTransport:
    if settings.engine_transport == "calls":
        return CallTransport()
    return FrameTransport(f"detokenizer@{socket.gethostname()}:{os.getpid()}", log)
