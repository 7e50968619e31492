"""A real engine station on a real port, in this process, with whatever executor a test gives it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from services.common.channels import open_channel
from services.common.errors import PostroadError, from_rpc
from services.common.tokenizer_files import fingerprint
from services.engine.core import EngineCore
from services.engine.executor.base import Executor, ExecutorInfo
from services.engine.executor.scripted import Script, ScriptedExecutor, ScriptEntry
from services.engine.loading.files import ModelFiles
from services.engine.plan import StepPlan, StepResult
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.served_model import ServedModel
from services.engine.settings import EngineSettings
from services.engine.station import SERVICE, EngineStation
from services.engine.thread import Load
from services.pb.postroad.v1 import common_pb2, debug_pb2, debug_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.support.polling import WAIT_SECONDS, until

VOCAB_SIZE = 1000
HIDDEN_SIZE = 64
EOS = 999
INFO = ExecutorInfo(num_pages=64, page_size=4, vocab_size=VOCAB_SIZE, max_model_len=128)
FILES = {"tokenizer.json": b"{}" * 300_000, "tokenizer_config.json": b"{}"}
MODEL = ServedModel(
    "tiny",
    ModelFiles(
        config={"hidden_size": HIDDEN_SIZE},
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset({EOS}),
        tokenizer_files=FILES,
        tokenizer_fingerprint=fingerprint(FILES),
    ),
    created=1,
)


def script(*token_ids: int) -> Script:
    """The same ids, over and over, for every prompt."""
    return Script((ScriptEntry(None, token_ids),), decode=str)


def scripted(*token_ids: int, info: ExecutorInfo = INFO) -> ScriptedExecutor:
    return ScriptedExecutor(info, script(*token_ids), step_ms=0)


class GatedExecutor:
    """Runs a step only when the test lets it, so that a test knows where every request stands."""

    def __init__(self, inner: Executor) -> None:
        self.info = inner.info
        self.entered = threading.Semaphore(0)  # released once per step that has begun
        self._inner = inner
        self._permits = threading.Semaphore(0)

    def allow(self, steps: int = 1) -> None:
        self._permits.release(steps)

    async def step_entered(self) -> None:
        """Returns when a step that was not waited for before has begun."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=WAIT_SECONDS), "no step began"

    def execute(self, plan: StepPlan) -> StepResult:
        self.entered.release()
        assert self._permits.acquire(timeout=WAIT_SECONDS), "the test let no step pass"
        return self._inner.execute(plan)

    def close(self) -> None:
        self._inner.close()


def request(prompt: Iterable[int] = (1, 2, 3), **stop: Any) -> engine_pb2.GenerateRequest:
    return engine_pb2.GenerateRequest(prompt_ids=prompt, stop=common_pb2.StopParams(**stop))


def loader(executor: Executor, config: SchedulerConfig) -> Load:
    def load(publish: Callable[[ServedModel], None]) -> EngineCore:
        publish(MODEL)
        return EngineCore(Scheduler(config, executor.info), executor)

    return load


@dataclass
class RunningEngine:
    """A client's view of the station, and the station itself."""

    station: EngineStation
    channel: grpc.aio.Channel
    registry: CollectorRegistry
    logs: list[Any]
    serving: asyncio.Task[bool]
    stub: Any = field(init=False)

    def __post_init__(self) -> None:
        self.stub = engine_pb2_grpc.EngineStub(self.channel)

    async def read_out(self) -> debug_pb2.ReadOutResponse:
        response: debug_pb2.ReadOutResponse = await debug_pb2_grpc.DebugStub(self.channel).ReadOut(
            debug_pb2.ReadOutRequest()
        )
        return response

    async def health(self) -> str:
        check = health_pb2_grpc.HealthStub(self.channel).Check
        response = await check(health_pb2.HealthCheckRequest(service=SERVICE))
        return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)

    async def until(self, condition: Callable[[debug_pb2.ReadOutResponse], bool]) -> debug_pb2.ReadOutResponse:
        """The first read-out that meets the condition."""
        read_out = debug_pb2.ReadOutResponse()

        async def is_met() -> bool:
            nonlocal read_out
            read_out = await self.read_out()
            return condition(read_out)

        await until(is_met)
        return read_out

    async def until_idle(self) -> debug_pb2.ReadOutResponse:
        """The read-out when every per-request map is empty; all pages must then be free or cached."""
        read_out = await self.until(lambda r: not any(r.requests.values()))
        assert read_out.kv.free_pages + read_out.kv.cached_pages == read_out.kv.total_pages
        assert read_out.kv.private_pages == read_out.kv.cached_pages_in_use == 0
        return read_out

    async def until_handlers_gone(self, left: int = 0) -> None:
        """Returns when the server knows of cancellations; the engine takes them up before its next step."""
        await self.until(lambda r: r.requests["live"] == left)

    async def until_health(self, state: str) -> None:
        async def is_reached() -> bool:
            return await self.health() == state

        await until(is_reached)

    async def generate(self, message: engine_pb2.GenerateRequest, **call: Any) -> Generated:
        """Runs a request by `Generate` to its end. Raises the typed error of its status."""
        got = Generated()
        try:
            async for response in self.stub.Generate(message, **call):
                got.take(response)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        return got

    def request_logs(self) -> list[Any]:
        return [entry for entry in self.logs if entry["event"] == "request"]


@dataclass
class Generated:
    """What came of one request."""

    token_ids: list[int] = field(default_factory=list)
    start: engine_pb2.StreamStart | None = None
    end: engine_pb2.StreamEnd | None = None
    error: PostroadError | None = None
    logprobs: common_pb2.TokenLogprobs = field(default_factory=common_pb2.TokenLogprobs)
    prompt_logprobs: common_pb2.TokenLogprobs = field(default_factory=common_pb2.TokenLogprobs)

    def take(self, response: engine_pb2.GenerateResponse) -> None:
        assert self.end is None, "a message after the end"
        if response.HasField("start"):
            assert self.start is None, "a second start"
            assert not self.token_ids, "a start after the first token"
            self.start = response.start
        if response.HasField("prompt_logprobs"):
            assert not self.token_ids, "the prompt's scores after its output"
            self.prompt_logprobs.MergeFrom(response.prompt_logprobs)
        self.logprobs.MergeFrom(response.logprobs)
        self.token_ids.extend(response.token_ids)
        if response.HasField("end"):
            self.end = response.end


@asynccontextmanager
async def running_engine(
    executor: Executor | None = None,
    *,
    load: Load | None = None,
    config: SchedulerConfig | None = None,
    wait: bool = True,
    **settings: Any,
) -> AsyncIterator[RunningEngine]:
    """Starts a station, waits until it serves if `wait`, and stops it at the end."""
    capture = LogCapture()
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[structlog.stdlib.add_log_level, capture])
    registry = CollectorRegistry()
    if load is None:
        load = loader(executor or scripted(*range(10, 20)), config or SchedulerConfig())
    parsed = EngineSettings(metrics_port=0, **{"port": 0, "drain_timeout": 0, **settings})
    station = EngineStation(parsed, lambda publish, _link: load(publish), registry, log)
    await station.start()
    serving = asyncio.create_task(station.run_until_stopped())
    async with open_channel(f"127.0.0.1:{station.port}") as channel:
        engine = RunningEngine(station, channel, registry, capture.entries, serving)
        try:
            if wait:
                await engine.until_health("SERVING")
            yield engine
        finally:
            await channel.close()
            station.request_stop()
            await serving
