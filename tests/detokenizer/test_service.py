"""Text, ends and accounts of Detokenizer.Generate on a real port, with a real engine behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.common.errors import InvalidArgument, NotReady, PostroadError
from services.common.request_context import ENGINE_KEY, REQUEST_ID_KEY, TRACEPARENT_KEY
from services.engine.executor.base import ExecutorInfo
from services.engine.executor.scripted import Script, ScriptedExecutor, ScriptEntry
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2
from tests.detokenizer.client import generate, request
from tests.support.engines import address, default_tokenizer, saying, scripted_engine
from tests.support.otlp import OtlpReceiver
from tests.support.polling import until
from tests.support.ports import free_ports
from tests.support.processes import wait_until
from tests.support.stations import RunningStation, running_detokenizer

TRANSPORTS = ["frames", "calls"]
TEXT = " Héllo 你好 👩‍👩‍👧 tabs\tand\n\nlines, 1234; and so on until the end."


def ids_of(text: str) -> list[int]:
    ids: list[int] = default_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def by_prompt(vocab_size: int = 49152, **texts: tuple[int, ...]) -> ScriptedExecutor:
    """Answers a prompt whose ids, written as a list, hold the number n with the ids of `pn`."""
    entries = tuple(ScriptEntry(name.removeprefix("p"), ids) for name, ids in texts.items())
    info = ExecutorInfo(num_pages=512, page_size=16, vocab_size=vocab_size, max_model_len=4096)
    return ScriptedExecutor(info, Script(entries, decode=str), step_ms=0)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_stream_is_the_whole_text(transport: Any) -> None:
    ids = ids_of(TEXT)
    async with (
        scripted_engine(saying(TEXT)) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        answer = await generate(station.stub, request(params={"max_tokens": 2 * len(ids)}))
        assert answer.text == TEXT * 2 == default_tokenizer().decode(ids * 2)
        assert answer.num_tokens == answer.end.usage.completion_tokens == 2 * len(ids)
        assert answer.end.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert answer.end.usage.prompt_tokens == 3
        assert [delta.HasField("start") for delta in answer.deltas].count(True) == 1
        assert answer.deltas[0].HasField("start")
        assert not any("\ufffd" in delta.text for delta in answer.deltas)
        await station.until_idle()
        await engine.until_idle()


async def test_where_tokens_begin_is_said_when_asked() -> None:
    ids = ids_of(TEXT)
    begins = [len(default_tokenizer().decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids))]
    async with scripted_engine(saying(TEXT)) as engine, running_detokenizer(address(engine)) as station:
        params = {"max_tokens": len(ids)}
        told = await generate(station.stub, request(params=params, report_token_offsets=True))
        assert [offset for delta in told.deltas for offset in delta.token_offsets] == begins
        assert all(len(delta.token_offsets) == delta.num_tokens for delta in told.deltas)
        silent = await generate(station.stub, request(params=params))
        assert not any(delta.token_offsets for delta in silent.deltas)


@pytest.mark.parametrize("max_tokens", range(1, 12))
async def test_fieldbug_02_a_text_cut_in_mid_character_keeps_its_tail(max_tokens: int) -> None:
    text = "👩‍👩‍👧日本"
    ids = ids_of(text)[:max_tokens]
    async with scripted_engine(saying(text)) as engine, running_detokenizer(address(engine)) as station:
        answer = await generate(station.stub, request(params={"max_tokens": len(ids)}))
        assert answer.text == default_tokenizer().decode(ids)


async def test_fieldbug_03_the_prompts_tail_is_not_shown() -> None:
    prompt, output = ids_of("An emoji 👩‍👩‍👧"), ids_of(" follows")
    async with (
        scripted_engine(by_prompt(p=tuple(output))) as engine,
        running_detokenizer(address(engine)) as station,
    ):
        answer = await generate(station.stub, request(prompt, params={"max_tokens": len(output)}))
        assert answer.text == " follows"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_fieldbug_04_ids_of_a_padded_vocabulary_are_no_text_and_end_nothing(transport: Any) -> None:
    good = tuple(ids_of(" fine"))
    executor = by_prompt(vocab_size=60_000, p777=(*good, 59_999), p888=good)
    async with (
        scripted_engine(executor) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        message = request([777], params={"max_tokens": 200})
        message.request.logprobs = 1
        odd = generate(station.stub, message)
        others = [generate(station.stub, request([888, n], params={"max_tokens": 200})) for n in range(4)]
        answer, *answers = await asyncio.gather(odd, *others)
        assert [a.text for a in answers] == [" fine" * 200] * 4
        assert answer.text == " fine" * 100
        assert answer.num_tokens == answer.end.usage.completion_tokens == 200
        tokens = [token for delta in answer.deltas for token in delta.tokens]
        assert [(token.token, token.bytes) for token in tokens] == [(" fine", b" fine"), ("token_id:59999", b"")] * 100
        await station.until_idle()
        await engine.until_idle()


async def test_fieldbug_05_special_tokens_are_skipped_per_request() -> None:
    async with scripted_engine(saying("a<|im_start|>b")) as engine, running_detokenizer(address(engine)) as station:
        params = {"max_tokens": 30}
        skipping = generate(station.stub, request([5], params=params))
        showing = generate(station.stub, request([6], params=params, skip_special_tokens=False))
        assert [a.text for a in await asyncio.gather(skipping, showing)] == ["ab" * 10, "a<|im_start|>b" * 10]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_fieldbug_06_the_only_token_is_delivered(transport: Any) -> None:
    async with (
        scripted_engine(saying(" Hello")) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        answer = await generate(station.stub, request(params={"max_tokens": 1}))
        assert answer.text == " Hello"
        assert answer.num_tokens == 1
        assert answer.deltas[0].HasField("start")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("include", [False, True])
async def test_fieldbug_07_a_stop_string_that_spans_tokens_is_never_shown_in_part(
    transport: Any, include: bool
) -> None:
    async with (
        scripted_engine(saying(" The letter keeps its seal until the end.", step_ms=1)) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        message = request(
            stop=["nowhere", "eps its se"], include_stop_str_in_output=include, params={"max_tokens": 2000}
        )
        answer = await generate(station.stub, message)
        assert answer.text == " The letter ke" + ("eps its se" if include else "")
        assert answer.end.finish_reason == common_pb2.FINISH_REASON_STOP
        assert answer.end.stop_string == "eps its se"
        assert not answer.end.HasField("stop_token_id")
        # Counted up to the token that completed it, whatever the engine had computed by then.
        assert answer.end.usage.completion_tokens == answer.num_tokens == len(ids_of(" The letter keeps its seal"))
        assert answer.end.usage.prompt_tokens == 3
        await engine.until_idle()
        await station.until_idle()
        [entry] = engine.request_logs()
        assert (entry["outcome"], entry["completion_tokens"] < 2000) == ("cancelled", True)


async def test_fieldbug_08_a_stop_string_that_never_completes_is_flushed() -> None:
    async with (
        scripted_engine(saying(" one two", finish=True)) as engine,
        running_detokenizer(address(engine)) as station,
    ):
        answer = await generate(station.stub, request(stop=["two three"]))
        assert answer.text == " one two"
        assert answer.end.finish_reason == common_pb2.FINISH_REASON_STOP
        assert not answer.end.HasField("stop_string")


async def test_fieldbug_09_no_stop_string_before_min_tokens() -> None:
    async with scripted_engine(saying(" go stop")) as engine, running_detokenizer(address(engine)) as station:
        message = request(stop=[" stop"], params={"max_tokens": 50, "min_tokens": 5})
        answer = await generate(station.stub, message)
        assert answer.text == " go stop go stop go"
        assert answer.end.usage.completion_tokens == 6


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_end_of_sequence_token_counts_and_is_no_text(transport: Any) -> None:
    async with (
        scripted_engine(saying(" Hello there", finish=True)) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        for skip in (True, False):
            answer = await generate(station.stub, request(skip_special_tokens=skip))
            assert answer.text == " Hello there"
            assert answer.end.finish_reason == common_pb2.FINISH_REASON_STOP
            assert answer.end.usage.completion_tokens == answer.num_tokens == 3
            assert answer.end.stop_token_id == default_tokenizer().token_to_id("<|im_end|>")


async def test_a_stop_token_id_is_no_text() -> None:
    one, two = ids_of(" one"), ids_of(" two")
    async with scripted_engine(saying(" one two")) as engine, running_detokenizer(address(engine)) as station:
        answer = await generate(station.stub, request(params={"stop_token_ids": two}))
        assert answer.text == " one"
        assert answer.end.stop_token_id == two[0]
        assert answer.end.usage.completion_tokens == len(one) + 1


@pytest.mark.parametrize(
    "stop", [[""], ["fine", ""], ["x" * 1025], [str(n) for n in range(17)]], ids=["empty", "one empty", "long", "many"]
)
async def test_fieldbug_12_unusable_stop_strings_are_refused_by_name(stop: list[str]) -> None:
    async with scripted_engine(saying("x")) as engine, running_detokenizer(address(engine)) as station:
        with pytest.raises(InvalidArgument) as caught:
            await generate(station.stub, request(stop=stop))
        assert caught.value.param == "stop"
        largest = request(stop=["y" * 1024, *map(str, range(15))], params={"max_tokens": 3})
        assert (await generate(station.stub, largest)).num_tokens == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_fieldbug_13_bad_prompt_ids_get_the_engines_own_error(transport: Any) -> None:
    async with (
        scripted_engine(saying("x")) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        for prompt in ([], [1, 2**31]):
            with pytest.raises(InvalidArgument) as caught:
                await generate(station.stub, request(prompt))
            assert caught.value.param == "prompt_ids"
        with pytest.raises(PostroadError) as too_long:
            await generate(station.stub, request([1] * 5000))
        assert too_long.value.reason == "CONTEXT_LENGTH_EXCEEDED"
        assert (await generate(station.stub, request(params={"max_tokens": 3}))).num_tokens == 3


async def test_fieldbug_24_requests_of_one_id_are_not_mixed_up() -> None:
    executor = by_prompt(p777=tuple(ids_of(" one two")), p888=tuple(ids_of(" three four")))
    async with scripted_engine(executor) as engine, running_detokenizer(address(engine)) as station:
        same_id = ((REQUEST_ID_KEY, "twin"),)
        prompts = [[777], [888], [777], [888]]
        calls = [generate(station.stub, request(p, params={"max_tokens": 60}), metadata=same_id) for p in prompts]
        texts = [answer.text for answer in await asyncio.gather(*calls)]
        assert texts == [" one two" * 30, " three four" * 30] * 2


async def test_metadata_names_the_engine() -> None:
    async with (
        scripted_engine(saying(" one")) as one,
        scripted_engine(saying(" two")) as two,
        running_detokenizer(address(one)) as station,
    ):
        message = request(params={"max_tokens": 1})
        there = ((ENGINE_KEY, address(two)),)
        assert (await generate(station.stub, message)).text == " one"
        assert (await generate(station.stub, message, metadata=there)).text == " two"
        for bad in ("", "nonsense", "host:port", "unix:/etc/passwd", "a b:1"):
            with pytest.raises(InvalidArgument) as raised:
                await generate(station.stub, message, metadata=((ENGINE_KEY, bad),))
            assert raised.value.param == ENGINE_KEY
        await station.until_idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("stop", [[], [" seal"]], ids=["length", "stop string"])
async def test_the_phases_add_up_to_the_whole_call(transport: Any, stop: list[str]) -> None:
    async with (
        scripted_engine(saying(" The letter keeps its seal until the end.", step_ms=3)) as engine,
        running_detokenizer(address(engine), engine_transport=transport) as station,
    ):
        timings = (await generate(station.stub, request(stop=stop, params={"max_tokens": 9}))).end.timings
        engine_us = timings.schedule_wait_us + timings.prefill_us + timings.decode_us
        assert timings.decode_us > 0
        assert timings.detokenize_us > 0
        parts = engine_us + timings.engine_hop_us + timings.detokenize_us
        assert abs(parts - timings.detokenizer_total_us) <= 2  # whole microseconds each


async def test_one_log_line_and_the_metrics_of_a_request() -> None:
    async with scripted_engine(saying(" a b")) as engine, running_detokenizer(address(engine)) as station:
        await generate(station.stub, request(params={"max_tokens": 4}), metadata=((REQUEST_ID_KEY, "mine"),))
        with pytest.raises(InvalidArgument):
            await generate(station.stub, request(stop=[""]))
        await until(lambda: len(station.request_logs()) == 2)
        done, refused = station.request_logs()
        assert (done["request_id"], done["outcome"], done["tokens"]) == ("mine", "length", 4)
        assert done["detokenise_ms"] > 0
        assert refused["outcome"] == "invalid_argument"
        assert [entry["request_id"] for entry in engine.request_logs()] == ["mine"]
        count = station.registry.get_sample_value
        assert count("postroad_detokenizer_requests_total", {"outcome": "length"}) == 1
        assert count("postroad_detokenizer_tokens_total") == 4
        assert count("postroad_detokenizer_time_seconds_count") == 1
        assert count("postroad_engine_hop_time_seconds_count") == 1


async def test_the_engines_span_is_a_child_of_the_detokenizers() -> None:
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with OtlpReceiver() as receiver:
        async with (
            scripted_engine(saying("x"), otlp_endpoint=receiver.endpoint) as engine,
            running_detokenizer(address(engine), otlp_endpoint=receiver.endpoint) as station,
        ):
            caller = ((TRACEPARENT_KEY, f"00-{trace_id}-{parent_id}-01"),)
            await generate(station.stub, request(params={"max_tokens": 2}), metadata=caller)
        wait_until(lambda: len({span.service for span in receiver.trace(trace_id)}) == 2, "both spans")
        spans = {span.name: span for span in receiver.trace(trace_id)}
    own = spans["detokenizer.generate"]
    assert own.parent_id == parent_id
    assert spans["engine_call"].parent_id == spans["engine"].parent_id == own.span_id


async def test_decode() -> None:
    async with scripted_engine(saying("x")) as engine, running_detokenizer(address(engine)) as station:

        async def decode(ids: list[int], **options: Any) -> str:
            response = await station.stub.Decode(detokenizer_pb2.DecodeRequest(ids=ids, **options))
            return str(response.text)

        assert await decode(ids_of(TEXT)) == TEXT
        assert await decode([]) == ""
        assert await decode([1, *ids_of("x")]) == "x"
        assert await decode([1, *ids_of("x")], skip_special_tokens=False) == "<|im_start|>x"
        with pytest.raises(Exception, match="vocabulary") as caught:
            await decode([49_152])
        assert caught.value.code().name == "INVALID_ARGUMENT"
        await station.until_idle()


async def test_fieldbug_28_not_serving_until_the_files_have_arrived() -> None:
    [port] = free_ports(1)
    async with running_detokenizer(f"127.0.0.1:{port}", wait=False) as station:
        assert await station.health() == "NOT_SERVING"
        with pytest.raises(NotReady):
            await generate(station.stub, request())
        async with scripted_engine(saying(" now"), port=port):
            await station.until_serving()
            assert (await generate(station.stub, request(params={"max_tokens": 1}))).text == " now"
        await _idle_with_engine_gone(station)


async def _idle_with_engine_gone(station: RunningStation) -> None:
    with pytest.raises(PostroadError) as caught:
        await generate(station.stub, request(params={"max_tokens": 1}))
    assert caught.value.reason == "ENGINE_LOST"
    await station.until_idle()
