"""A rank that does not lead, as a process: it joins rank 0, follows it, and joins again when the stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from services.common.errors import PostroadError
from services.common.servers import StationServer
from services.engine.errors import StartupError
from services.engine.loading.errors import LoadingError
from services.engine.models.errors import ModelError
from services.engine.ranks.errors import RankRefused
from services.engine.ranks.follower_thread import FollowerThread, Load
from services.engine.ranks.identity import RankIdentity
from services.engine.ranks.leader_stream import LeaderStream
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.metrics import FollowerMetrics
from services.engine.ranks.steps import Steps
from services.engine.ranks.wire import identity_message, loaded_message
from services.engine.settings import EngineSettings
from services.pb.postroad.v1 import debug_pb2, ranks_pb2

RETRY_SECONDS = 0.5
LEAVE_SECONDS = 10.0  # beyond rank_timeout, for a step that runs when rank 0 is lost
OPERATOR_ERRORS = (LoadingError, ModelError, StartupError, RankRefused)  # their message is all that is needed


class RankStation:
    """SERVING, by the health of the whole server, while the rank is in a group. To be made on a running event loop."""

    def __init__(
        self,
        settings: EngineSettings,
        identify: Callable[[], RankIdentity],
        load: Load,
        registry: CollectorRegistry,
        log: FilteringBoundLogger,
    ) -> None:
        """`identify` reads samples of the model's files; `load` loads the rank's part, in the thread that computes."""
        self.failed = False  # the process is of no use any more
        self._settings = settings
        self._identify = identify
        self._log = log.bind(rank=settings.rank)
        self._server = StationServer("", f"{settings.host}:{settings.port}", self._read_out, self._log)
        self._metrics = FollowerMetrics(registry)
        self._thread = FollowerThread(load, self, self._metrics)
        self._stream = LeaderStream(settings.leader)
        self._steps = Steps()
        self._loaded: LoadedRank | None = None
        self._is_loading = False
        self._following: asyncio.Task[None] | None = None
        self._health_updates: set[asyncio.Task[None]] = set()  # the loop itself keeps no reference on a task

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        await self._server.start()
        self._following = asyncio.create_task(self._follow())

    def request_stop(self) -> None:
        """What SIGTERM does."""
        self._server.request_stop()

    async def run_until_stopped(self) -> bool:
        """Follows until SIGTERM, SIGINT or an error that ends it; rank 0 may finish its requests first.

        False: the thread that computes is left behind.
        """
        await self._server.run_until_stopped(self._steps, self._settings.drain_timeout)
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._stream.close()
        return False

    def on_loaded(self, loaded: LoadedRank) -> None:
        self._loaded = loaded
        self._log.info("weights loaded", max_pages=loaded.max_pages)
        self._tell_loaded(loaded)

    def on_formed(self, epoch: int) -> None:
        self._log.info("in the group", epoch=epoch)
        self._stream.send(ranks_pb2.FromRank(formed=ranks_pb2.GroupFormed(epoch=epoch)))
        self._set_serving(True)

    def on_begun(self, number: int) -> None:
        self._steps.note()
        self._stream.send(ranks_pb2.FromRank(begun=ranks_pb2.StepBegun(number=number)))

    def on_failed(self, epoch: int, error: Exception) -> None:
        self._log.warning("left the group", epoch=epoch, error=str(error))
        self._stream.send(ranks_pb2.FromRank(failed=ranks_pb2.RankFailed(epoch=epoch, message=str(error))))
        self._set_serving(False)

    def on_death(self, error: BaseException) -> None:
        self._log.error(
            "the rank ended", error=str(error), exc_info=None if isinstance(error, OPERATOR_ERRORS) else error
        )
        self.failed = True
        self._steps.end()
        self._server.request_stop()

    async def _follow(self) -> None:
        try:
            identity = identity_message(await asyncio.to_thread(self._identify))
            join = ranks_pb2.JoinGroup(rank=self._settings.rank, identity=identity)
            reason = ""
            while True:
                try:
                    await self._stream.follow(join, self._take)
                    ended = "rank 0 ended the stream"
                except RankRefused:
                    raise
                except PostroadError as error:
                    ended = error.message
                if ended != reason:  # once, and not with each try
                    self._log.info("not in touch with rank 0", leader=self._settings.leader, reason=ended)
                    reason = ended
                await self._leave()
                await asyncio.sleep(RETRY_SECONDS)
        except Exception as error:
            self.on_death(error)

    async def _leave(self) -> None:
        self._set_serving(False)
        self._steps.end()
        if self._loaded is None:
            return
        seconds = self._settings.rank_timeout + LEAVE_SECONDS
        if not await self._thread.leave(seconds):
            raise StartupError(f"a step hangs: it did not end within {seconds:g} s after rank 0 was gone")

    def _take(self, message: ranks_pb2.ToRank) -> None:
        if not message.HasField("accepted"):
            self._thread.do(message)
            return
        self._log.info("joined", leader=self._settings.leader)
        if self._loaded is not None:
            self._tell_loaded(self._loaded)
        elif not self._is_loading:
            self._is_loading = True
            self._thread.start()

    def _read_out(self) -> debug_pb2.ReadOutResponse:
        return debug_pb2.ReadOutResponse(counters={"rank_steps": self._steps.total})

    def _set_serving(self, serving: bool) -> None:
        self._metrics.in_group.set(serving)
        task = asyncio.get_running_loop().create_task(self._server.set_serving(serving))
        self._health_updates.add(task)
        task.add_done_callback(self._health_updates.discard)

    def _tell_loaded(self, loaded: LoadedRank) -> None:
        self._stream.send(ranks_pb2.FromRank(loaded=loaded_message(loaded)))
