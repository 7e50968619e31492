"""Engine.Embed: embeddings, refusals, and requests whose client is gone, which fail or which wait."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from services.common.errors import (
    ContextLengthExceeded,
    Draining,
    EngineFailed,
    Internal,
    InvalidArgument,
    PostroadError,
    QueueFull,
    from_rpc,
)
from services.engine.executor.errors import BrokenSequencesError
from services.engine.plan import StepPlan, StepResult
from services.engine.scheduler.config import SchedulerConfig
from services.pb.postroad.v1 import engine_pb2
from tests.engine.running_engine import (
    HIDDEN_SIZE,
    INFO,
    VOCAB_SIZE,
    GatedExecutor,
    RunningEngine,
    request,
    running_engine,
    scripted,
)

SMALL_STEPS = SchedulerConfig(max_num_seqs=4, max_batch_tokens=8)
LAST, MEAN = engine_pb2.POOLING_LAST, engine_pb2.POOLING_MEAN


async def embed(engine: RunningEngine, prompt: Any, pooling: Any = LAST, **fields: Any) -> engine_pb2.EmbedResponse:
    message = engine_pb2.EmbedRequest(prompt_ids=prompt, pooling=pooling, **fields)
    try:
        response: engine_pb2.EmbedResponse = await engine.stub.Embed(message)
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
    return response


async def test_an_embedding_has_the_model_s_size_and_length_1_and_the_same_in_every_company() -> None:
    prompts = [list(range(seed, seed + 30)) for seed in range(5)]
    async with running_engine(scripted(10, 11)) as engine:
        model = await engine.stub.GetModel(engine_pb2.GetModelRequest())
        assert model.embedding_size == HIDDEN_SIZE
        alone = [await embed(engine, prompt, pooling) for prompt in prompts for pooling in (LAST, MEAN)]
        assert len({tuple(response.embedding) for response in alone}) == 10
        for response in alone:
            assert len(response.embedding) == HIDDEN_SIZE
            assert np.linalg.norm(response.embedding) == pytest.approx(1, abs=1e-6)
    async with running_engine(scripted(10, 11), config=SMALL_STEPS) as engine:
        texts = [engine.generate(request(range(20), max_tokens=5)) for _ in range(3)]
        calls = [embed(engine, prompt, pooling) for prompt in prompts for pooling in (LAST, MEAN)]
        generated, together = await asyncio.gather(asyncio.gather(*texts), asyncio.gather(*calls))
        assert [list(response.embedding) for response in together] == [list(response.embedding) for response in alone]
        assert all(one.token_ids == [10, 11, 10, 11, 10] for one in generated)
        await engine.until_idle()


async def test_usage_times_metrics_and_the_log_line() -> None:
    async with running_engine(scripted(10)) as engine:
        await embed(engine, range(30))
        last = await embed(engine, range(30))
        mean = await embed(engine, range(30), MEAN)
        unspecified = await embed(engine, range(30), engine_pb2.POOLING_UNSPECIFIED)
        assert unspecified.embedding == last.embedding
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (30, 0, 28)
        assert (mean.usage.prompt_tokens, mean.usage.cached_tokens) == (30, 0)
        assert last.timings.schedule_wait_us + last.timings.prefill_us > 0
        assert last.timings.decode_us == 0
        await engine.until_idle()
        sample = engine.registry.get_sample_value
        assert sample("postroad_request_success_total", {"finished_reason": "stop"}) == 4
        assert sample("postroad_prompt_tokens_total") == 120
        assert sample("postroad_generation_tokens_total") == 0
        [line, *_] = engine.request_logs()
        assert (line["outcome"], line["prompt_tokens"], line["completion_tokens"]) == ("ok", 30, 0)
        other_salt = await embed(engine, range(30), cache_salt="other")
        assert other_salt.usage.cached_tokens == 0


async def test_a_prompt_may_fill_the_model() -> None:
    async with running_engine(scripted(10), config=SMALL_STEPS) as engine:
        longest = await embed(engine, [1] * INFO.max_model_len, MEAN)
        assert longest.usage.prompt_tokens == INFO.max_model_len
        with pytest.raises(ContextLengthExceeded, match=r"128 tokens\. However, your prompt has 129") as raised:
            await embed(engine, [1] * (INFO.max_model_len + 1))
        assert raised.value.param == "prompt_ids"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_ids": []}, "prompt_ids"),
        ({"prompt_ids": [1, VOCAB_SIZE]}, "prompt_ids"),
        ({"prompt_ids": [1], "pooling": 7}, "pooling"),
        ({"prompt_ids": [1], "cache_salt": "x" * 257}, "cache_salt"),
        ({"prompt_ids": [1], "priority": 101}, "priority"),
    ],
)
async def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    async with running_engine(scripted(10)) as engine:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await engine.stub.Embed(engine_pb2.EmbedRequest(**fields))
        error = from_rpc(raised.value)
        assert isinstance(error, InvalidArgument)
        assert error.param == param
        await engine.until_idle()


@pytest.mark.parametrize("steps_before", [0, 1, 3])
async def test_fieldbug_20_a_cancelled_request_is_freed_before_the_next_step(steps_before: int) -> None:
    gate = GatedExecutor(scripted(10))
    async with running_engine(gate, config=SMALL_STEPS) as engine:
        call = engine.stub.Embed(engine_pb2.EmbedRequest(prompt_ids=range(60), pooling=MEAN))
        for _ in range(steps_before):
            await gate.step_entered()
            gate.allow()
        await gate.step_entered()
        call.cancel()
        await engine.until_handlers_gone()
        gate.allow()
        assert (await engine.until_idle()).counters["steps"] == steps_before + 1
        assert engine.request_logs()[-1]["outcome"] == "cancelled"


async def test_a_deadline_ends_the_request() -> None:
    gate = GatedExecutor(scripted(10))
    async with running_engine(gate, config=SMALL_STEPS) as engine:
        call = engine.stub.Embed(engine_pb2.EmbedRequest(prompt_ids=range(60)), timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await engine.until_handlers_gone()
        gate.allow()
        await engine.until_idle()


async def test_too_many_are_refused_and_a_drain_ends_those_that_run() -> None:
    gate = GatedExecutor(scripted(10))
    async with running_engine(gate, max_waiting=1, drain_timeout=0.05) as engine:
        running = asyncio.create_task(embed(engine, range(20)))
        await gate.step_entered()
        with pytest.raises(QueueFull):
            await embed(engine, range(20))
        engine.station.request_stop()
        with pytest.raises(Draining):
            await running
        gate.allow()


class BrokenExecutor:
    """Raises `error` in every step."""

    def __init__(self, error: Exception) -> None:
        self.info = INFO
        self._error = error

    def execute(self, plan: StepPlan) -> StepResult:
        raise self._error

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "kind"), [(RuntimeError("broken"), EngineFailed), (BrokenSequencesError([1]), Internal)]
)
async def test_a_step_that_fails_fails_its_requests(error: Exception, kind: type[PostroadError]) -> None:
    async with running_engine(BrokenExecutor(error)) as engine:
        with pytest.raises(kind):
            await embed(engine, range(20))
        await engine.until_idle()
