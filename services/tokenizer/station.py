"""The tokenizer as a station: pool, RPCs and server put together, and the files fetched from the engine."""

from __future__ import annotations

import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from services.common.live_requests import LiveRequests
from services.common.servers import StationServer
from services.common.tokenizer_files import serve_with_files
from services.common.tracing import Tracing
from services.pb.postroad.v1 import engine_pb2, tokenizer_pb2_grpc
from services.tokenizer.metrics import TokenizerMetrics
from services.tokenizer.service import TokenizerService
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.worker_pool import WorkerPool

SERVICE = "postroad.v1.Tokenizer"


class TokenizerStation:
    """Listens at once, serves when the files have arrived. To be made on a running event loop."""

    def __init__(self, settings: TokenizerSettings, registry: CollectorRegistry, log: FilteringBoundLogger) -> None:
        # The tokenizers library would send every text through one thread pool of its own, where short ones wait for
        # long ones.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._settings = settings
        self._log = log
        self._live = LiveRequests()
        self._pool = WorkerPool(settings.threads, settings.max_pending, settings.max_pending_mib * 1024 * 1024)
        self._tracing = Tracing(settings.station, settings.otlp_endpoint)
        metrics = TokenizerMetrics(registry, lambda: self._pool.pending)
        self._service = TokenizerService(
            self._pool, self._live, metrics, self._tracing, log, max_text_mib=settings.max_text_mib
        )
        self._server = StationServer(
            SERVICE,
            f"{settings.host}:{settings.port}",
            self._service.read_out,
            log,
            max_connection_age=settings.max_connection_age,
        )
        tokenizer_pb2_grpc.add_TokenizerServicer_to_server(self._service, self._server.server)

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
            on_model=self._service.on_model,
            live=self._live,
            drain_timeout=settings.drain_timeout,
            log=self._log,
        )
        self._pool.close()
        self._tracing.close()
        return succeeded

    async def _load(self, files: Mapping[str, bytes], model: engine_pb2.GetModelResponse) -> None:
        await self._service.load(files)
        self._service.on_model(model)  # before the first request
