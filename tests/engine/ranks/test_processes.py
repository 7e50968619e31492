"""Ranks as processes: they start in any order, are missed when they go, and come together again by themselves."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.common.channels import open_channel
from services.common.errors import EngineFailed
from services.common.logs import make_logger
from services.engine.core import StepReport
from services.engine.plan import SamplingParams, StopParams
from services.engine.scheduler.sequence import Sequence
from services.engine.settings import EngineSettings
from services.engine.startup import load_engine
from tests.engine.ranks.processes import LeaderClient, RankProcess
from tests.support.models import tiny_model_folder
from tests.support.ports import free_ports

STREAMS = 32
ENDS_WITHIN = 5.0  # seconds from the loss of a rank to the end of every request


class Group:
    """Two ranks, of which a test may end one and start another."""

    def __init__(self, model: Path) -> None:
        (self.port,) = free_ports(1)
        self._model = model
        self.ranks = [self.start(rank) for rank in (1, 0)][::-1]  # rank 0 last

    def start(self, rank: int, *flags: str) -> RankProcess:
        own = (f"--model={self._model}", "--num-pages=192", "--max-batch-tokens=64", "--max-num-seqs=32")
        return RankProcess(rank, 2, self.port, *own, *flags)

    def close(self) -> None:
        for rank in self.ranks:
            rank.program.__exit__()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM")


@pytest.fixture(scope="module")
def group(model: Path) -> Iterator[Group]:
    group = Group(model)
    try:
        yield group
    finally:
        group.close()


@pytest.fixture
async def client(group: Group) -> AsyncIterator[LeaderClient]:
    """Of a group that is whole, whatever the test before did to it."""
    async with open_channel(f"127.0.0.1:{group.port}") as channel:
        client = LeaderClient(channel)
        await client.until_serving()
        yield client


def prompt(stream: int) -> list[int]:
    """Those of even streams begin alike."""
    return [7 * i % 1000 for i in range(0 if stream % 2 else 40)] + [stream + 3, 11, 5]


def tokens_of_one_rank(model: Path, max_tokens: int) -> list[list[int]]:
    """What an engine of one rank makes of all prompts, one after the other."""
    settings = EngineSettings(model=str(model), executor="torch", dtype="float32", threads=1, num_pages=192)
    core = load_engine(settings, lambda _: None, make_logger("engine", "error", "json"))

    def stop_at_the_end(report: StepReport) -> None:
        if any(output.finish_reason is not None for output in report.outputs):
            core.stop()

    outputs = []
    for stream in range(STREAMS):
        sequence = Sequence(stream, prompt(stream), SamplingParams(temperature=0.0), StopParams(max_tokens), 0)
        core.add(sequence)
        core.run(stop_at_the_end)
        outputs.append(sequence.output_ids)
    core.close()
    return outputs


@asynccontextmanager
async def running_streams(client: LeaderClient) -> AsyncIterator[list[asyncio.Task[object]]]:
    """Streams that have got a token each, and would run for long."""
    begun = [asyncio.Event() for _ in range(STREAMS)]
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(client.generate(prompt(i), 1900, begun[i])) for i in range(STREAMS)
    ]
    async with asyncio.timeout(60):
        await asyncio.gather(*(event.wait() for event in begun))
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def all_fail(streams: list[asyncio.Task[object]]) -> None:
    begin = time.monotonic()
    done, hanging = await asyncio.wait(streams, timeout=ENDS_WITHIN)
    assert not hanging, f"{len(hanging)} of {len(streams)} requests hang"
    print(f"\nall ended within {time.monotonic() - begin:.2f} s")
    for task in done:
        error = task.result()
        assert isinstance(error, EngineFailed), error
        assert "sent again" in error.message


async def test_many_streams_get_the_tokens_of_one_rank(group: Group, client: LeaderClient, model: Path) -> None:
    expected = await asyncio.to_thread(tokens_of_one_rank, model, 24)
    results = await asyncio.gather(*(client.generate(prompt(i), 24) for i in range(STREAMS)))
    assert results == expected
    read_out = await client.read_out()
    assert read_out.counters["prefix_hit_tokens"] > 0
    assert not any(read_out.requests.values())


async def test_a_killed_rank_ends_requests_and_is_replaced(group: Group, client: LeaderClient) -> None:
    before = await client.generate(prompt(0), 12)
    async with running_streams(client) as streams:
        group.ranks[1].kill()
        await all_fail(streams)
    await client.until_not_serving()
    refused = await client.generate(prompt(0), 1)
    assert isinstance(refused, EngineFailed)

    misfit = group.start(1, "--dtype=bfloat16", "--page-size=32")
    ended = await misfit.event("the rank ended")
    assert "dtype is 'bfloat16' there and 'float32' at rank 0; page-size is 32 there and 16 at rank 0" in ended["error"]
    assert "exception" not in ended
    assert misfit.program.wait() == 1

    group.ranks[1] = group.start(1)
    await client.until_serving()
    assert await client.generate(prompt(0), 12) == before  # and the prefix cache of the lost group is not used
    assert (await client.read_out()).kv.private_pages == 0


async def test_a_rank_that_hangs_is_missed_and_comes_back(group: Group, client: LeaderClient) -> None:
    before = await client.generate(prompt(3), 12)
    pid = group.ranks[1].program.pid
    async with running_streams(client) as streams:
        group.ranks[1].program.send(signal.SIGSTOP)
        try:
            await all_fail(streams)
        finally:
            group.ranks[1].program.send(signal.SIGCONT)
    await client.until_serving()
    assert group.ranks[1].program.pid == pid
    steps = await group.ranks[1].metric("postroad_rank_step_seconds_count")
    assert await client.generate(prompt(3), 12) == before
    assert await group.ranks[1].metric("postroad_rank_step_seconds_count") > steps
    assert await group.ranks[1].metric("postroad_rank_in_group") == 1


async def test_ranks_join_a_new_rank_0(group: Group, client: LeaderClient) -> None:
    before = await client.generate(prompt(3), 12)
    group.ranks[0].kill()
    await client.until_not_serving()
    group.ranks[0] = group.start(0)
    await client.until_serving()
    assert await client.generate(prompt(3), 12) == before


async def test_a_stop_of_all_lets_running_requests_finish(group: Group, client: LeaderClient) -> None:
    begun = asyncio.Event()
    running = asyncio.create_task(client.generate(prompt(1), 100, begun))
    await begun.wait()
    for rank in group.ranks:
        rank.program.send(signal.SIGTERM)
    tokens = await running
    assert isinstance(tokens, list), tokens
    assert len(tokens) == 100
    assert [rank.program.wait() for rank in group.ranks] == [0, 0]
