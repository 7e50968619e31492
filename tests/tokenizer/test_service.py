"""The tokenizer's RPCs on a real port, with the files of a real engine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from transformers import PreTrainedTokenizerFast

from services.common.errors import (
    ContextLengthExceeded,
    InvalidArgument,
    NotReady,
    PostroadError,
    QueueFull,
    TooLarge,
    from_rpc,
)
from services.common.request_context import REQUEST_ID_KEY, TRACEPARENT_KEY
from services.common.tokenizer_files import fingerprint
from services.engine.core import EngineCore
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.served_model import ServedModel
from services.engine.thread import Load
from services.pb.postroad.v1 import tokenizer_pb2
from services.tokenizer.model_tokenizer import ModelTokenizer
from tests.engine.running_engine import running_engine
from tests.support.engines import address, default_files, saying, scripted_engine
from tests.support.otlp import OtlpReceiver
from tests.support.polling import WAIT_SECONDS, until
from tests.support.ports import free_ports
from tests.support.processes import wait_until
from tests.support.stations import RunningStation, running_tokenizer
from tests.tokenizer.bos_files import BOS, files_with_bos

MIB_OF_TEXT = "The quick brown fox jumps over 13 lazy dogs; 你好。 " * 20_000


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    async with scripted_engine(saying("Hello", pages=4096, max_model_len=65536)) as running:
        yield address(running)


@pytest.fixture
async def station(engine: str) -> AsyncIterator[RunningStation]:
    async with running_tokenizer(engine) as running:
        yield running


async def encode(station: RunningStation, *texts: str, **options: Any) -> Any:
    return await call(station.stub.Encode(tokenizer_pb2.EncodeRequest(texts=texts, **options)))


async def render(station: RunningStation, messages: Any, **options: Any) -> Any:
    request = tokenizer_pb2.RenderChatRequest(messages_json=json.dumps(messages), **options)
    return await call(station.stub.RenderChat(request))


async def call(pending: Any) -> Any:
    try:
        return await pending
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error


async def test_encode_several_texts_in_order(station: RunningStation, oracle: PreTrainedTokenizerFast) -> None:
    texts = ["one", "", "two 👍 three", "<|im_end|>"]
    response = await encode(station, *texts)
    assert [list(e.ids) for e in response.encodings] == [oracle.encode(text) for text in texts]
    assert response.elapsed_us > 0


async def test_render_chat_gives_prompt_and_ids(station: RunningStation, oracle: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    response = await render(station, messages)
    assert response.prompt == oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert list(response.ids) == oracle.encode(response.prompt, add_special_tokens=False)
    assert response.elapsed_us > 0
    without = await render(station, messages, add_generation_prompt=False)
    assert response.prompt == without.prompt + "<|im_start|>assistant\n"


async def test_fieldbug_11_a_chat_counts_as_many_tokens_as_its_prompt(station: RunningStation) -> None:
    chat = await render(station, [{"role": "user", "content": "Hello"}])
    encoded = await encode(station, chat.prompt, add_special_tokens=False)
    assert list(encoded.encodings[0].ids) == list(chat.ids)


async def test_fieldbug_11_the_templates_beginning_of_sequence_token_is_the_only_one() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    found = files_with_bos(default_files().tokenizer_files, template)
    files = replace(default_files(), tokenizer_files=found, tokenizer_fingerprint=fingerprint(found))
    executor = saying("Hello")

    def load(publish: Callable[[ServedModel], None]) -> EngineCore:
        publish(ServedModel("with-bos", files, created=1))
        return EngineCore(Scheduler(SchedulerConfig(), executor.info), executor)

    async with running_engine(load=load, wait=False) as engine, running_tokenizer(address(engine)) as station:
        chat = await render(station, [{"role": "user", "content": "Hello"}])
        assert list(chat.ids).count(BOS) == 1
        assert list((await encode(station, "Hello")).encodings[0].ids) == list(chat.ids)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (tokenizer_pb2.EncodeRequest(), "texts"),
        (tokenizer_pb2.RenderChatRequest(), "messages_json"),
        (tokenizer_pb2.RenderChatRequest(messages_json='[{"role": "robot"}]'), "messages_json[0].role"),
        (tokenizer_pb2.RenderChatRequest(messages_json='[{"role":"user","content":"x"}]', tools_json=""), "tools_json"),
        (
            tokenizer_pb2.RenderChatRequest(
                messages_json='[{"role":"user","content":"x"}]', template_kwargs_json='{"tokenize": true}'
            ),
            "template_kwargs_json",
        ),
    ],
)
async def test_bad_input_is_named_and_the_station_goes_on(station: RunningStation, request_: Any, param: str) -> None:
    method = station.stub.Encode if isinstance(request_, tokenizer_pb2.EncodeRequest) else station.stub.RenderChat
    with pytest.raises(InvalidArgument) as caught:
        await call(method(request_))
    assert caught.value.param == param
    assert len((await encode(station, "still here")).encodings[0].ids) == 2
    await station.until_idle()


async def test_fieldbug_18_texts_over_four_mebibytes_pass(station: RunningStation) -> None:
    text = "x" * (5 << 20)
    response = await encode(station, text[: 5 << 18], *[text[: 1 << 20]] * 4)
    assert len(response.encodings) == 5


async def test_a_text_that_cannot_fit_the_model_is_not_encoded(tokenizer: ModelTokenizer) -> None:
    fitting = 64 * tokenizer.longest_token
    async with (
        scripted_engine(saying("Hello", max_model_len=64)) as engine,
        running_tokenizer(address(engine)) as station,
    ):
        await encode(station, "x" * fitting)
        with pytest.raises(ContextLengthExceeded) as raised:
            await encode(station, "short", "é" * (fitting // 2 + 1))
        assert raised.value.param == "texts[1]"
        for number in (64, fitting + 2, tokenizer.longest_token, fitting):
            assert f" {number} " in raised.value.message
        with pytest.raises(ContextLengthExceeded) as raised:
            await render(station, [{"role": "user", "content": "x" * fitting}])
        assert raised.value.param == "messages_json"
        await until(lambda: len(station.request_logs()) == 3)
        assert [entry["tokens"] for entry in station.request_logs()][1:] == [0, 0]


async def test_a_text_is_bounded_while_the_model_s_length_is_not_known(tokenizer: ModelTokenizer) -> None:
    loaded = threading.Event()
    too_long = "x" * (64 * tokenizer.longest_token + 1)
    async with (
        running_engine(load=_load_after(loaded), wait=False) as engine,
        running_tokenizer(address(engine), max_text_mib=1) as station,
    ):
        await encode(station, too_long)
        with pytest.raises(TooLarge, match=" 1048577 bytes, more than the 1 MiB "):
            await encode(station, "x" * ((1 << 20) + 1))
        loaded.set()

        async def is_refused() -> bool:
            try:
                await encode(station, too_long)
            except ContextLengthExceeded:
                return True
            return False

        await until(is_refused)


def _load_after(loaded: threading.Event) -> Load:
    """What an engine runs whose weights, for 64 tokens, take until the event."""
    executor = saying("Hello", max_model_len=64)

    def load(publish: Callable[[ServedModel], None]) -> EngineCore:
        publish(ServedModel("slow", default_files(), created=1))
        assert loaded.wait(WAIT_SECONDS)
        return EngineCore(Scheduler(SchedulerConfig(), executor.info), executor)

    return load


async def test_a_message_over_the_limit_is_refused_cleanly(station: RunningStation) -> None:
    generic = station.channel.unary_unary("/postroad.v1.Tokenizer/Encode")
    with pytest.raises(TooLarge):
        await call(generic(tokenizer_pb2.EncodeRequest(texts=["x" * (65 << 20)]).SerializeToString()))
    assert (await encode(station, "still here")).encodings[0].ids


async def test_fieldbug_30_a_long_text_holds_nobody_up(station: RunningStation) -> None:
    long_ones = [asyncio.create_task(encode(station, MIB_OF_TEXT)) for _ in range(3)]
    await station.until(lambda requests: requests["pending_jobs"] == 3)
    await encode(station, "short")
    await encode(station, "not so short, and therefore on a thread " * 100)
    await render(station, [{"role": "user", "content": "short"}])
    assert not any(task.done() for task in long_ones)
    for response in await asyncio.gather(*long_ones):
        assert len(response.encodings[0].ids) > 300_000
    await station.until_idle()


async def test_fieldbug_26_too_much_pending_is_refused(engine: str) -> None:
    async with running_tokenizer(engine, max_pending=1) as station:
        long_one = asyncio.create_task(encode(station, MIB_OF_TEXT))
        await station.until(lambda requests: requests["pending_jobs"] == 1)
        with pytest.raises(QueueFull):
            await encode(station, "one too many " * 200)
        await long_one
        await station.until_idle()
        await encode(station, "welcome")


async def test_fieldbug_25_cancelled_calls_leave_nothing(station: RunningStation) -> None:
    calls = [station.stub.Encode(tokenizer_pb2.EncodeRequest(texts=[MIB_OF_TEXT])) for _ in range(4)]
    await station.until(lambda requests: requests["live_requests"] == 4)
    for one in calls:
        one.cancel()
    await station.until_idle()
    await station.until(lambda _: len(station.request_logs()) == 4)  # told after the calls have ended
    assert {entry["outcome"] for entry in station.request_logs()} == {"cancelled"}
    assert (await encode(station, "still here")).encodings[0].ids


async def test_fieldbug_28_not_serving_until_the_files_have_arrived() -> None:
    [port] = free_ports(1)
    async with running_tokenizer(f"127.0.0.1:{port}", wait=False) as station:
        assert await station.health() == "NOT_SERVING"
        with pytest.raises(NotReady):
            await encode(station, "too early")
        async with scripted_engine(saying("Hello"), port=port):
            await station.until_serving()
            assert (await encode(station, "now")).encodings[0].ids
        # The engine is gone again; what the station does needs no engine.
        assert (await encode(station, "still")).encodings[0].ids


async def test_one_log_line_per_request(station: RunningStation) -> None:
    await station.stub.Encode(tokenizer_pb2.EncodeRequest(texts=["one two"]), metadata=((REQUEST_ID_KEY, "mine"),))
    with pytest.raises(PostroadError):
        await encode(station)
    await station.until(lambda _: len(station.request_logs()) == 2)
    done, refused = station.request_logs()
    assert (done["request_id"], done["method"], done["outcome"], done["tokens"]) == ("mine", "encode", "ok", 2)
    assert done["tokenise_ms"] > 0
    assert refused["outcome"] == "invalid_argument"
    count = station.registry.get_sample_value
    assert count("postroad_tokenizer_requests_total", {"method": "encode", "outcome": "ok"}) == 1
    assert count("postroad_tokenizer_time_seconds_count", {"method": "encode"}) == 2
    assert count("postroad_tokenizer_tokens_total") == 2


async def test_the_span_is_a_child_of_the_callers(engine: str) -> None:
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with OtlpReceiver() as receiver:
        async with running_tokenizer(engine, otlp_endpoint=receiver.endpoint) as station:
            request = tokenizer_pb2.EncodeRequest(texts=["x"])
            await station.stub.Encode(request, metadata=((TRACEPARENT_KEY, f"00-{trace_id}-{parent_id}-01"),))
        wait_until(lambda: bool(receiver.trace(trace_id)), "the span")
        [span] = receiver.trace(trace_id)
    assert (span.service, span.name, span.parent_id) == ("postroad-tokenizer", "tokenizer.encode", parent_id)
