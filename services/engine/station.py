"""The engine as a station: server, engine thread and RPCs put together, and what happens when one of them ends.

With several ranks this is rank 0: it serves while the group of ranks is whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from services.common.errors import Draining, EngineFailed
from services.common.live_requests import LiveRequests
from services.common.servers import StationServer
from services.common.tracing import Tracing
from services.engine.core import EngineCore, StepReport
from services.engine.engine import Engine
from services.engine.errors import StartupError
from services.engine.executor.errors import ExecutorLost
from services.engine.executor.scripted import ScriptError
from services.engine.grammar.bounded import BoundedCompiler
from services.engine.grammar.library import GrammarLibrary
from services.engine.loading.errors import LoadingError
from services.engine.loading.files import ModelFiles
from services.engine.metrics import EngineMetrics
from services.engine.models.errors import ModelError
from services.engine.ranks import servicer as ranks_servicer
from services.engine.ranks.leader import RankLeader
from services.engine.ranks.link import RankLink
from services.engine.reporting import RequestReporter
from services.engine.served_model import ServedModel
from services.engine.service import EngineServicer
from services.engine.settings import EngineSettings
from services.engine.thread import EngineThread
from services.pb.postroad.v1 import engine_pb2_grpc, ranks_pb2_grpc

LoadEngine = Callable[[Callable[[ServedModel], None], RankLink], EngineCore]

SERVICE = "postroad.v1.Engine"
THREAD_STOP_SECONDS = 5.0  # for the step in progress
OPERATOR_ERRORS = (LoadingError, ModelError, ScriptError, StartupError)  # their message is all that is needed


class EngineStation:
    """Listens at once, loads in a thread, serves when that is done, and stops when told to or when the thread dies.

    `load` is called in the engine thread, with a function to publish the model's files by and the link to the other
    ranks. To be made on a running event loop.
    """

    def __init__(
        self, settings: EngineSettings, load: LoadEngine, registry: CollectorRegistry, log: FilteringBoundLogger
    ) -> None:
        self.failed = False  # the engine thread died: the process is of no use any more
        self._settings = settings
        self._log = log
        self._metrics = EngineMetrics(registry)
        self._tracing = Tracing("engine", settings.otlp_endpoint)
        self._live = LiveRequests()
        self._servicer = EngineServicer(self._live, RequestReporter(self._tracing, self._metrics, log), log)
        self._server = StationServer(
            SERVICE,
            f"{settings.host}:{settings.port}",
            self._servicer.read_out,
            log,
            more_services=[ranks_servicer.SERVICE],
        )
        self._ranks = RankLeader(settings.tensor_parallel_size, self._metrics.ranks, log)
        self._thread = EngineThread(lambda publish: load(publish, self._ranks.link), self)
        self._core: EngineCore | None = None
        self._model: ServedModel | None = None
        self._grammars: GrammarLibrary | None = None
        self._engine: Engine | None = None
        self._health_updates: set[asyncio.Task[None]] = set()  # the loop itself keeps no reference on a task
        engine_pb2_grpc.add_EngineServicer_to_server(self._servicer, self._server.server)
        ranks_pb2_grpc.add_RanksServicer_to_server(ranks_servicer.RanksServicer(self._ranks, log), self._server.server)

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Opens the port and starts to load."""
        await self._server.start()
        self._thread.start()

    def request_stop(self) -> None:
        """What SIGTERM does."""
        self._server.request_stop()

    async def run_until_stopped(self) -> bool:
        """Serves until SIGTERM, SIGINT or the engine's death, then drains and stops.

        False if the engine thread had to be left behind, in a step or in loading.
        """
        await self._server.run_until_stopped(self._live, self._settings.drain_timeout, self._end_requests)
        ended = await self._thread.stop(THREAD_STOP_SECONDS)
        if self._grammars is not None:
            self._grammars.close()
        self._tracing.close()
        return ended

    def on_model(self, model: ServedModel) -> None:
        self._model = model
        self._servicer.publish_model(model)
        self._grammars = self._open_grammars(model.files)
        self._log.info("model files read", model=model.name, fingerprint=model.files.tokenizer_fingerprint[:12])

    def on_ready(self, core: EngineCore) -> None:
        assert self._model is not None, "the engine is ready before its model's files"
        assert self._grammars is not None, "the engine is ready before its model's files"
        settings, eos_token_ids = self._settings, self._model.files.eos_token_ids
        self._engine = Engine(
            core, eos_token_ids, settings.max_waiting, settings.num_speculative_tokens, self._grammars
        )
        engine = self._engine
        self._metrics.collector.attach(lambda: engine.state, engine.counters)
        self._servicer.publish_engine(engine)
        self._core = core
        self._ranks.attach(self)
        info = core.info
        self._log.info(
            "ready", model=self._model.name, max_model_len=info.max_model_len, pages=info.num_pages, page=info.page_size
        )

    def on_step(self, report: StepReport) -> None:
        assert self._engine is not None, "a step before the engine is ready"
        self._engine.on_step(report)
        self._metrics.step(report)
        if report.error is not None:
            self._tell_failure(report, report.error)
            self._ranks.lose(f"step {report.number} failed: {report.error}")

    def on_group_offered(self) -> None:
        assert self._core is not None, "attached before the engine is ready"
        self._core.start_over()

    def on_group_whole(self) -> None:
        assert self._engine is not None, "attached before the engine is ready"
        self._engine.reopen()
        self._set_serving(True)

    def on_group_lost(self, reason: str) -> None:
        assert self._engine is not None, "attached before the engine is ready"
        self._set_serving(False)
        self._engine.close(
            EngineFailed(f"the engine's ranks are not together: {reason}; the request may be sent again")
        )

    def on_death(self, error: BaseException) -> None:
        self._log.error(
            "the engine ended", error=str(error), exc_info=None if isinstance(error, OPERATOR_ERRORS) else error
        )
        self.failed = True
        self._set_serving(False)
        self._servicer.end_requests(EngineFailed("the engine failed and is about to restart"))
        self._server.request_stop()

    def _tell_failure(self, report: StepReport, error: Exception) -> None:
        is_lost = isinstance(error, ExecutorLost)  # its message says it all
        self._log.error(
            "step failed",
            step=report.number,
            requests=len(report.failed),
            error=str(error),
            exc_info=None if is_lost else error,
        )

    def _open_grammars(self, files: ModelFiles) -> GrammarLibrary:
        def make_compiler() -> BoundedCompiler:
            return BoundedCompiler(files.tokenizer_files["tokenizer.json"], files.vocab_size, files.eos_token_ids)

        settings = self._settings
        return GrammarLibrary(
            make_compiler, settings.grammar_cache_mib * 2**20, settings.grammar_timeout, self._metrics
        )

    def _end_requests(self) -> None:
        self._servicer.end_requests(Draining("the engine stopped before the request was finished"))

    def _set_serving(self, serving: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._server.set_serving(serving))
        self._health_updates.add(task)
        task.add_done_callback(self._health_updates.discard)
