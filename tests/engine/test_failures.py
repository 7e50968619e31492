"""Steps that fail, an engine thread that dies, models that do not load."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from services.common.errors import EngineFailed, Internal, from_rpc
from services.engine.core import MAX_FAILURES_IN_A_ROW
from services.engine.executor.errors import BrokenSequencesError
from services.engine.loading.errors import ModelNotFound
from services.engine.plan import StepPlan, StepResult
from services.engine.scheduler.config import SchedulerConfig
from services.pb.postroad.v1 import common_pb2
from tests.engine.framed_peer import framed_peer
from tests.engine.running_engine import GatedExecutor, request, running_engine, scripted
from tests.support.polling import WAIT_SECONDS


class FailingExecutor:
    """Raises on the steps that it is told of, counted from 1, and runs all others."""

    def __init__(self, *failing_steps: int, error: type[BaseException] = RuntimeError) -> None:
        self._inner = scripted(10, 11, 12)
        self._failing = failing_steps
        self._error = error
        self._count = 0
        self.info = self._inner.info
        self.closed = False

    def execute(self, plan: StepPlan) -> StepResult:
        self._count += 1
        if self._count in self._failing:
            raise self._error("a fault of the test")
        return self._inner.execute(plan)

    def close(self) -> None:
        self.closed = True


async def test_a_failed_step_ends_every_request_and_the_engine_goes_on():
    async with running_engine(FailingExecutor(3), config=SchedulerConfig(max_num_seqs=2)) as engine:
        calls = [engine.generate(request(max_tokens=10)) for _ in range(4)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        failed = [result for result in results if isinstance(result, EngineFailed)]
        assert failed
        assert all("fault of the test" not in error.message for error in failed)
        read_out = await engine.until_idle()
        assert read_out.kv.cached_pages + read_out.kv.free_pages == 64
        assert (await engine.generate(request(max_tokens=2))).token_ids == [10, 11]
        assert await engine.health() == "SERVING"
        assert engine.registry.get_sample_value("postroad_engine_failed_steps_total") == 1
        assert "engine_failed" in [entry["outcome"] for entry in engine.request_logs()]


class PoisonedExecutor:
    """Has no finite logits for prompts that begin with `POISON`."""

    POISON = 7

    def __init__(self) -> None:
        self._inner = scripted(10, 11, 12)
        self.info = self._inner.info

    def execute(self, plan: StepPlan) -> StepResult:
        sampling = [s for s in plan.sequences if s.sampling]
        if broken := [s.sequence_id for s in sampling if s.sampling[0].prompt_ids[0] == self.POISON]:
            raise BrokenSequencesError(broken)
        return self._inner.execute(plan)

    def close(self) -> None:
        pass


async def test_a_request_that_breaks_its_step_is_not_to_be_sent_again_and_does_not_end_the_engine():
    async with running_engine(PoisonedExecutor()) as engine:
        calls = [engine.generate(request([first, 5], max_tokens=3)) for first in (1, PoisonedExecutor.POISON)]
        fine, poisoned = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(poisoned, Internal)
        assert isinstance(fine, EngineFailed) or fine.token_ids == [10, 11, 12]
        for _ in range(MAX_FAILURES_IN_A_ROW):
            with pytest.raises(Internal):
                await engine.generate(request([PoisonedExecutor.POISON], max_tokens=3))
        assert (await engine.generate(request(max_tokens=2))).token_ids == [10, 11]
        assert await engine.health() == "SERVING"


async def test_tokens_before_the_failure_are_delivered():
    async with running_engine(FailingExecutor(4)) as engine:
        call = engine.stub.Generate(request(max_tokens=10))
        token_ids: list[int] = []

        async def read() -> None:
            async for response in call:
                token_ids.extend(response.token_ids)

        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read()
        assert isinstance(from_rpc(raised.value), EngineFailed)
        assert token_ids == [10, 11, 12]


async def test_a_failed_step_empties_the_cache():
    async with running_engine(FailingExecutor(2)) as engine:
        prompt = range(1, 30)
        await engine.generate(request(prompt, max_tokens=1))
        with pytest.raises(EngineFailed):
            await engine.generate(request(prompt, max_tokens=1))
        assert (await engine.until_idle()).kv.cached_pages == 0
        assert (await engine.generate(request(prompt, max_tokens=1))).end.usage.cached_tokens == 0


async def test_a_framed_request_gets_the_failure_in_its_frame_and_as_status():
    async with running_engine(FailingExecutor(3)) as engine, framed_peer(engine) as peer:
        with pytest.raises(Exception, match="a step of the engine failed") as raised:
            await peer.generate(1, request(max_tokens=9))
        assert isinstance(from_rpc(raised.value), EngineFailed)
        end = await peer.end(1)
        assert end.finish_reason == common_pb2.FINISH_REASON_ERROR
        assert (end.error.code, end.error.reason) == (14, "ENGINE_FAILED")
        assert peer.by_handle[1].token_ids == [10, 11]
        await engine.until_idle()


async def test_fieldbug_28_three_failures_in_a_row_end_the_process_with_an_error():
    executor = FailingExecutor(2, 3, 4)
    async with running_engine(executor) as engine:
        for _ in range(3):
            with pytest.raises(EngineFailed):
                await engine.generate(request(max_tokens=2))
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.shield(engine.serving)
        assert engine.station.failed
        assert executor.closed
        assert any(entry["event"] == "the engine ended" for entry in engine.logs)


async def test_failures_that_are_not_in_a_row_do_not_end_it():
    async with running_engine(FailingExecutor(1, 3, 5, 7)) as engine:
        for _ in range(4):
            with pytest.raises(EngineFailed):
                await engine.generate(request(max_tokens=1))
            await engine.generate(request(max_tokens=1))
        assert not engine.station.failed


async def test_a_dead_engine_thread_ends_running_and_waiting_requests_and_the_process():
    gate = GatedExecutor(FailingExecutor(3, error=SystemExit))
    async with running_engine(gate, config=SchedulerConfig(max_num_seqs=2)) as engine:
        calls = [asyncio.create_task(engine.generate(request(max_tokens=10))) for _ in range(3)]
        await engine.until(lambda r: r.requests["engine_live"] == 3)
        gate.allow(3)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [EngineFailed] * 3
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.shield(engine.serving)
        assert engine.station.failed


async def test_a_model_that_does_not_load_ends_the_process_and_says_why_in_one_line():
    def load(publish):
        raise ModelNotFound("no such file: nowhere.gguf")

    async with running_engine(load=load, wait=False) as engine:
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.shield(engine.serving)
        assert engine.station.failed
        ended = next(entry for entry in engine.logs if entry["event"] == "the engine ended")
        assert ended["error"] == "no such file: nowhere.gguf"
        assert not ended["exc_info"]
