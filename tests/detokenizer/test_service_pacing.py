"""When messages are held back, and that neither the first token nor the end ever is."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.detokenizer.pacing import PACED_FROM, Pacer
from tests.detokenizer.client import generate, request
from tests.engine.running_engine import GatedExecutor
from tests.support.engines import address, saying, scripted_engine
from tests.support.polling import until
from tests.support.stations import running_detokenizer

MANY = 2 * PACED_FROM
TOKENS = 40


async def test_few_streams_are_not_held_back() -> None:
    released: list[int] = []
    for live, held in ((1, False), (PACED_FROM - 1, False), (PACED_FROM, True), (1000, True)):
        pacer = Pacer(0.001, lambda live=live: live)
        assert pacer.hold(lambda: released.append(1)) is held
        await until(lambda pacer=pacer: len(pacer) == 0)
    assert released == [1, 1]


async def test_no_interval_means_no_hold() -> None:
    assert not Pacer(0, lambda: 1000).hold(lambda: None)


async def test_holds_end_in_order_and_not_before_their_time() -> None:
    pacer, released = Pacer(0.03, lambda: 1000), list[tuple[int, float]]()
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


async def test_a_release_may_hold_again() -> None:
    pacer, rounds = Pacer(0.001, lambda: 1000), list[int]()

    def again() -> None:
        rounds.append(1)
        if len(rounds) < 5:
            pacer.hold(again)

    pacer.hold(again)
    await until(lambda: len(rounds) == 5)
    assert len(pacer) == 0


async def test_messages_of_many_streams_are_fewer_and_hold_the_same_text() -> None:
    async with (
        scripted_engine(saying(" one two three four", step_ms=4)) as engine,
        running_detokenizer(address(engine), pace_ms=1000) as station,
    ):
        messages = [request([n], params={"max_tokens": TOKENS}) for n in range(MANY)]
        answers = await asyncio.gather(*(generate(station.stub, message) for message in messages))
        for answer in answers:
            assert answer.text == " one two three four" * (TOKENS // 4)
            assert answer.num_tokens == TOKENS
            assert answer.deltas[0].HasField("start")
        assert sum(len(answer.deltas) for answer in answers) < MANY * TOKENS / 4
        await station.until_idle()


@pytest.mark.parametrize(("pace_ms", "streams"), [(1000, PACED_FROM // 2), (0, MANY)], ids=["few", "no pace"])
async def test_without_pacing_each_step_is_a_message(pace_ms: float, streams: int) -> None:
    executor = GatedExecutor(saying(" one two three four"))
    async with (
        scripted_engine(executor) as engine,
        running_detokenizer(address(engine), pace_ms=pace_ms) as station,
    ):
        counts = [0] * streams

        async def count_messages(number: int) -> None:
            call = station.stub.Generate(request([number], params={"max_tokens": 1000}))
            while await call.read():
                counts[number] += 1

        readers = [asyncio.create_task(count_messages(number)) for number in range(streams)]
        while not all(counts):  # until every stream runs
            executor.allow(1)
            await asyncio.sleep(0.001)
        for _ in range(3):
            before = list(counts)
            executor.allow(1)
            await until(lambda before=before: all(new > old for new, old in zip(counts, before, strict=True)))
        for reader in readers:
            reader.cancel()
        await station.until_idle()
        executor.allow(5)
        await engine.until_idle()


async def test_a_paced_stream_ends_at_once() -> None:
    """With the longest pace, a stream that ends within it has its first message and its last."""
    async with (
        scripted_engine(saying(" one two three four")) as engine,
        running_detokenizer(address(engine), pace_ms=1000) as station,
    ):
        messages = [request([n], stop=["three four"], params={"max_tokens": 400}) for n in range(MANY)]
        answers = await asyncio.gather(*(generate(station.stub, message) for message in messages))
        assert {answer.text for answer in answers} == {" one two "}
        assert max(len(answer.deltas) for answer in answers) <= 3
        await station.until_idle()
