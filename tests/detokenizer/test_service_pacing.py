"""When messages are held back, and that neither the first token nor the end ever is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import structlog

from services.common.errors import EngineLost, InvalidArgument
from services.detokenizer.accounting import Timeline
from services.detokenizer.decode import make_decoder_factory
from services.detokenizer.pacing import PACED_FROM, Pacer
from services.detokenizer.pipeline import TextPipeline
from services.detokenizer.stop import StopMatcher
from services.detokenizer.text_stream import TextStream
from services.pb.postroad.v1 import common_pb2, engine_pb2
from tests.detokenizer.client import generate, request
from tests.engine.running_engine import GatedExecutor
from tests.support.engines import address, default_tokenizer, saying, scripted_engine
from tests.support.polling import until
from tests.support.stations import running_detokenizer

MANY = 2 * PACED_FROM
TOKENS = 40


async def test_few_streams_are_not_held_back() -> None:
    released: list[int] = []
    for live, held in ((1, False), (PACED_FROM - 1, False), (PACED_FROM, True), (1000, True)):
        pacer = Pacer(0.001, lambda live=live: live)
        assert (pacer.hold(lambda: released.append(1)) is not None) is held
        await until(lambda pacer=pacer: len(pacer) == 0)
    assert released == [1, 1]


async def test_no_interval_means_no_hold() -> None:
    assert not Pacer(0, lambda: 1000).hold(lambda: None)


async def test_without_a_token_holds_end_in_order_after_twice_their_time() -> None:
    pacer, released = Pacer(0.015, lambda: 1000), list[tuple[int, float]]()
    began = []
    for number in range(3):
        began.append(time.monotonic())
        assert pacer.hold(lambda number=number: released.append((number, time.monotonic())))
        await asyncio.sleep(0.01)
    await until(lambda: len(released) == 3)
    assert [number for number, _ in released] == [0, 1, 2]
    # As much earlier as streams are released together.
    assert all(end - start >= 0.03 - 0.003 for start, (_, end) in zip(began, released, strict=True))
    assert len(pacer) == 0


async def test_a_token_ends_a_hold_that_has_lasted_its_time_and_no_other() -> None:
    now = 0.0
    pacer = Pacer(1.0, lambda: 1000, lambda: now)
    first = pacer.hold(lambda: None)
    now = 0.5
    second = pacer.hold(lambda: None)
    assert first is not None
    assert second is not None
    assert not first.on_token()
    now = 1.0
    assert first.on_token()
    assert not second.on_token()
    assert len(pacer) == 1


async def test_what_a_token_has_ended_time_does_not_end_again() -> None:
    pacer, released = Pacer(0.005, lambda: 1000), list[int]()
    first, second = (pacer.hold(lambda number=number: released.append(number)) for number in range(2))
    assert first is not None
    assert second is not None
    await until(first.on_token)
    await until(lambda: second.is_over)
    assert released == [1]


async def test_a_release_may_hold_again() -> None:
    pacer, rounds = Pacer(0.001, lambda: 1000), list[int]()

    def again() -> None:
        rounds.append(1)
        if len(rounds) < 5:
            pacer.hold(again)

    pacer.hold(again)
    await until(lambda: len(rounds) == 5)
    assert len(pacer) == 0


def open_stream(live: int, *stops: str, pacer: Pacer | None = None) -> TextStream:
    """A stream beside `live` others. Without `pacer` its pace is longer than any test."""
    tokenizer = default_tokenizer()
    decoder = make_decoder_factory(tokenizer)([1], skip_special_tokens=True)
    pipeline = TextPipeline(decoder, StopMatcher(stops, include_match=False))
    if pacer is None:
        pacer = Pacer(1e6, lambda: live)
    return TextStream(pipeline, pacer, Timeline.begin(), 1, structlog.get_logger())


def ids_of(text: str) -> list[int]:
    ids: list[int] = default_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


async def stays_silent(reading: asyncio.Task[Any]) -> bool:
    for _ in range(10):
        await asyncio.sleep(0)
    return not reading.done()


async def test_beside_few_streams_each_token_is_a_message() -> None:
    stream = open_stream(PACED_FROM - 1)
    for word in (" one", " two", " three"):
        stream.on_tokens(ids_of(word))
        assert (await stream.next_delta()).text == word


async def test_beside_many_streams_text_waits_for_its_time_but_not_at_the_ends() -> None:
    stream = open_stream(PACED_FROM)
    stream.on_tokens(ids_of(" one"))
    assert (await stream.next_delta()).text == " one"
    reading = asyncio.create_task(stream.next_delta())
    stream.on_tokens(ids_of(" two"))
    assert await stays_silent(reading)
    stream.on_end(ids_of(" three"), engine_pb2.StreamEnd(finish_reason=common_pb2.FINISH_REASON_LENGTH))
    last = await reading
    assert (last.text, last.num_tokens, last.HasField("end")) == (" two three", 2, True)


async def test_text_that_has_waited_its_time_leaves_with_the_next_token() -> None:
    now = 0.0
    stream = open_stream(PACED_FROM, pacer=Pacer(1e6, lambda: PACED_FROM, lambda: now))
    stream.on_tokens(ids_of(" one"))
    await stream.next_delta()
    reading = asyncio.create_task(stream.next_delta())
    stream.on_tokens(ids_of(" two"))
    now = 1e6
    assert await stays_silent(reading)
    stream.on_tokens(ids_of(" three"))
    assert (await reading).text == " two three"


async def test_text_without_a_next_token_leaves_all_the_same() -> None:
    stream = open_stream(PACED_FROM, pacer=Pacer(0.005, lambda: PACED_FROM))
    stream.on_tokens(ids_of(" one"))
    await stream.next_delta()
    stream.on_tokens(ids_of(" two"))
    assert (await stream.next_delta()).text == " two"


async def test_a_first_token_without_text_goes_at_once() -> None:
    stream = open_stream(PACED_FROM)
    stream.on_start(engine_pb2.StreamStart(cached_tokens=3))
    stream.on_tokens(ids_of("👩")[:1])
    first = await stream.next_delta()
    assert (first.text, first.num_tokens, first.start.cached_tokens) == ("", 1, 3)


async def test_a_stop_string_ends_a_held_stream_at_once() -> None:
    stream = open_stream(PACED_FROM, " three")
    stream.on_tokens(ids_of(" one"))
    await stream.next_delta()
    reading = asyncio.create_task(stream.next_delta())
    stream.on_tokens(ids_of(" two"))
    assert await stays_silent(reading)
    stream.on_tokens(ids_of(" three"))
    last = await reading
    assert (last.text, last.end.stop_string) == (" two", " three")


async def test_an_error_goes_at_once_after_the_text_before_it() -> None:
    stream = open_stream(PACED_FROM)
    stream.on_tokens(ids_of(" one"))
    await stream.next_delta()
    stream.on_tokens(ids_of(" two"))
    stream.on_error(EngineLost("gone"))
    assert (await stream.next_delta()).text == " two"
    with pytest.raises(EngineLost):
        await stream.next_delta()


async def test_the_engines_error_in_a_frame_keeps_its_field() -> None:
    stream = open_stream(PACED_FROM)
    error = engine_pb2.StreamError(code=3, reason="INVALID_ARGUMENT", message="no", param="structured_output.regex")
    stream.on_end([], engine_pb2.StreamEnd(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error))
    with pytest.raises(InvalidArgument, match="no") as raised:
        await stream.next_delta()
    assert raised.value.param == "structured_output.regex"


async def test_messages_of_many_streams_are_fewer_and_hold_the_same_text() -> None:
    executor = GatedExecutor(saying(" one two three four", step_ms=4))
    async with (
        scripted_engine(executor) as engine,
        running_detokenizer(address(engine), pace_ms=1000) as station,
    ):
        messages = [request([n], params={"max_tokens": TOKENS}) for n in range(MANY)]
        calls = [asyncio.create_task(generate(station.stub, message)) for message in messages]
        await engine.until(lambda read_out: read_out.requests["engine_live"] == MANY)
        executor.allow(100 * TOKENS)
        answers = await asyncio.gather(*calls)
        for answer in answers:
            assert answer.text == " one two three four" * (TOKENS // 4)
            assert answer.num_tokens == TOKENS
            assert answer.deltas[0].HasField("start")
        assert sum(len(answer.deltas) for answer in answers) < MANY * TOKENS / 2
        await station.until_idle()
