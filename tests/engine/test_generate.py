"""`Generate`: one call per request."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest

from services.common import tokenizer_files
from services.common.errors import InvalidArgument, NotReady, QueueFull
from services.engine.core import EngineCore
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.engine.running_engine import (
    EOS,
    FILES,
    MODEL,
    GatedExecutor,
    request,
    running_engine,
    scripted,
)


async def test_tokens_start_and_end():
    async with running_engine(scripted(10, 11, 12)) as engine:
        got = await engine.generate(request([1, 2, 3], max_tokens=5))
        assert got.token_ids == [10, 11, 12, 10, 11]
        assert got.start is not None
        assert got.end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert got.end.usage == common_pb2.Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=0)
        assert got.end.timings.schedule_wait_us == got.start.schedule_wait_us
        assert got.end.timings.prefill_us == got.start.prefill_us
        assert not got.end.HasField("stop_token_id")
        assert not got.end.HasField("error")
        await engine.until_idle()


async def test_an_end_of_sequence_id_is_sent_and_named():
    async with running_engine(scripted(10, EOS, 11)) as engine:
        got = await engine.generate(request())
        assert got.token_ids == [10, EOS]
        assert got.end.finish_reason == common_pb2.FINISH_REASON_STOP
        assert got.end.stop_token_id == EOS
        assert got.end.usage.completion_tokens == 2


async def test_a_stop_token_id_of_the_request():
    async with running_engine(scripted(10, 11, 12)) as engine:
        got = await engine.generate(request(stop_token_ids=[12]))
        assert got.token_ids == [10, 11, 12]
        assert got.end.stop_token_id == 12


async def test_ignore_eos_keeps_the_request_s_own_stop_ids():
    async with running_engine(scripted(10, EOS, 12)) as engine:
        got = await engine.generate(request(ignore_eos=True, stop_token_ids=[12], max_tokens=9))
        assert got.token_ids == [10, EOS, 12]
        assert got.end.finish_reason == common_pb2.FINISH_REASON_STOP


async def test_fieldbug_09_min_tokens_outlasts_stop_ids_and_eos():
    async with running_engine(scripted(EOS, 12, 13)) as engine:
        got = await engine.generate(request(min_tokens=4, stop_token_ids=[12]))
        assert got.end.usage.completion_tokens >= 5
        assert not {EOS, 12} & set(got.token_ids[:4])
        assert got.end.finish_reason == common_pb2.FINISH_REASON_STOP


async def test_without_max_tokens_the_model_s_length_is_the_limit():
    async with running_engine(scripted(10, 11)) as engine:
        got = await engine.generate(request(range(100)))
        assert len(got.token_ids) == 28
        assert got.end.finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_one_token_carries_start_and_end():
    async with running_engine(scripted(10, 11)) as engine:
        got = await engine.generate(request(max_tokens=1))
        assert got.token_ids == [10]
        assert got.start is not None
        assert got.end.timings.decode_us == 0


async def test_cached_tokens_of_a_repeated_prompt():
    async with running_engine() as engine:
        prompt = list(range(1, 22))
        await engine.generate(request(prompt, max_tokens=1))
        got = await engine.generate(request(prompt, max_tokens=1))
        assert got.start.cached_tokens == got.end.usage.cached_tokens == 20
        salted = engine_pb2.GenerateRequest(prompt_ids=prompt, cache_salt="other")
        assert (await engine.generate(salted)).end.usage.cached_tokens == 0


async def test_fieldbug_24_one_request_id_twice_gives_two_answers():
    async with running_engine(scripted(*range(10, 40))) as engine:
        metadata = (("x-request-id", "same"),)
        first, second = await asyncio.gather(
            engine.generate(request([1], max_tokens=3), metadata=metadata),
            engine.generate(request([2, 3], max_tokens=6), metadata=metadata),
        )
        assert first.token_ids == [10, 11, 12]
        assert second.token_ids == [10, 11, 12, 13, 14, 15]
        await engine.until_idle()
        assert [entry["request_id"] for entry in engine.request_logs()] == ["same", "same"]


async def test_fieldbug_26_a_full_queue_refuses_at_once_and_admits_again_after_a_cancel():
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate, config=SchedulerConfig(max_num_seqs=1), max_waiting=2) as engine:
        calls = [engine.stub.Generate(request(max_tokens=2)) for _ in range(2)]
        await engine.until(lambda r: r.requests["engine_live"] == 2)
        await gate.step_entered()
        with pytest.raises(QueueFull):
            await engine.generate(request())
        calls[1].cancel()
        await engine.until_handlers_gone(left=1)
        gate.allow()
        await engine.until(lambda r: r.requests["engine_live"] == 1)
        third = asyncio.create_task(engine.generate(request(max_tokens=2)))
        gate.allow(10)
        assert (await third).token_ids == [10, 11]
        calls[0].cancel()
        await engine.until_idle()


async def test_fieldbug_28_each_answer_comes_as_soon_as_it_can_and_health_says_when_requests_do():
    files_may_be_read, files_published, weights_may_be_loaded = (threading.Event() for _ in range(3))

    def load(publish):
        assert files_may_be_read.wait(20)
        publish(MODEL)
        files_published.set()
        assert weights_may_be_loaded.wait(20)
        executor = scripted(10)
        return EngineCore(Scheduler(SchedulerConfig(), executor.info), executor)

    async with running_engine(load=load, wait=False) as engine:
        get_model = engine.stub.GetModel
        with pytest.raises(grpc.aio.AioRpcError, match="files are still being read"):
            await get_model(engine_pb2.GetModelRequest())

        files_may_be_read.set()
        assert await asyncio.to_thread(files_published.wait, 20)
        model = await get_model(engine_pb2.GetModelRequest())
        assert (model.model, model.max_model_len, model.vocab_size) == ("tiny", 0, 1000)
        assert list(model.eos_token_ids) == [EOS]
        assert await tokenizer_files.fetch(engine.stub) == FILES
        with pytest.raises(NotReady):
            await engine.generate(request())
        assert await engine.health() == "NOT_SERVING"

        weights_may_be_loaded.set()
        await engine.until_health("SERVING")
        assert (await engine.generate(request(max_tokens=1))).token_ids == [10]
        assert (await get_model(engine_pb2.GetModelRequest())).max_model_len == 128


async def test_tokenizer_files_come_in_chunks_of_at_most_256_kib():
    async with running_engine() as engine:
        chunks = [chunk async for chunk in engine.stub.GetTokenizerFiles(engine_pb2.GetTokenizerFilesRequest())]
        assert [chunk.name for chunk in chunks] == ["tokenizer.json"] * 3 + ["tokenizer_config.json", ""]
        assert max(len(chunk.data) for chunk in chunks) == 256 * 1024
        assert chunks[-1].sha256 == MODEL.files.tokenizer_fingerprint


async def test_one_log_line_per_request_and_its_metrics():
    async with running_engine(scripted(10, 11)) as engine:
        await engine.generate(request([1, 2, 3], max_tokens=4), metadata=(("x-request-id", "abc"),))
        with pytest.raises(InvalidArgument):
            await engine.generate(request([]), metadata=(("x-request-id", "bad"),))
        good, bad = engine.request_logs()
        assert (good["request_id"], good["outcome"], good["completion_tokens"]) == ("abc", "length", 4)
        assert {"schedule_wait_ms", "prefill_ms", "decode_ms"} <= good.keys()
        assert (bad["request_id"], bad["outcome"], bad["param"]) == ("bad", "invalid_argument", "prompt_ids")

        value = engine.registry.get_sample_value
        assert value("postroad_generation_tokens_total") == 4
        assert value("postroad_prompt_tokens_total") == 3
        assert value("postroad_request_success_total", {"finished_reason": "length"}) == 1
        assert value("postroad_prefix_cache_queries_total") == 3
        assert value("postroad_engine_step_seconds_count") == 4
        assert value("postroad_engine_batch_tokens_sum") == 6
        assert value("postroad_request_decode_time_seconds_count") == 1
        assert value("postroad_num_requests_running") == value("postroad_num_requests_waiting") == 0
        assert value("postroad_kv_cache_usage_perc") == 0


async def test_speculation_changes_no_answer_and_is_counted():
    script = [10, 11, 12, 13, 14, 15]
    async with running_engine(scripted(*script)) as engine:
        plain = await engine.generate(request([1, 2, 3], max_tokens=30))
        message = request([1, 2, 3], max_tokens=30)
        message.num_speculative_tokens = 4
        guessed = await engine.generate(message)
        assert guessed.token_ids == plain.token_ids == script * 5
        value = engine.registry.get_sample_value
        drafts = value("postroad_spec_decode_num_drafts_total")
        tokens = value("postroad_spec_decode_num_draft_tokens_total")
        assert tokens == value("postroad_spec_decode_num_accepted_tokens_total")
        assert 30 - len(script) - 4 < drafts + tokens < 30
        assert drafts < tokens <= 4 * drafts
        assert value("postroad_generation_tokens_total") == 60
        read_out = await engine.read_out()
        assert read_out.counters["spec_decode_drafts"] == drafts


async def test_gauges_while_requests_run():
    gate = GatedExecutor(scripted(10, 11))
    async with running_engine(gate, config=SchedulerConfig(max_num_seqs=1)) as engine:
        calls = [engine.stub.Generate(request(max_tokens=50)) for _ in range(2)]
        await engine.until(lambda r: r.requests["engine_live"] == 2)
        gate.allow(2)
        await engine.until(lambda r: r.requests["scheduler_waiting"] == 1)
        value = engine.registry.get_sample_value
        assert value("postroad_num_requests_running") == value("postroad_num_requests_waiting") == 1
        assert value("postroad_kv_cache_usage_perc") == pytest.approx(1 / 64)
        for call in calls:
            call.cancel()
        await engine.until_handlers_gone()
        gate.allow(10)
        await engine.until_idle()
