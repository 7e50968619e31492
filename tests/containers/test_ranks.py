"""An engine of two ranks, a container each (profile tp2): it serves, misses a rank that crashes, and is whole again."""

from __future__ import annotations

import grpc
import pytest

from services.pb.postroad.v1 import debug_pb2, debug_pb2_grpc
from tests.containers.compose import GRPC_PORTS, Compose
from tests.e2e.client import Client, until, user
from tests.e2e.streams import all_end_with_an_error_frame, running_streams

pytestmark = pytest.mark.containers
RANKS = ("engine", "engine-rank-1")


@pytest.fixture
def ranks(two_ranks: Compose) -> Compose:
    """Whatever the test before did to it, the group is whole."""
    two_ranks.wait_healthy(RANKS)
    return two_ranks


def steps_followed(compose: Compose) -> int:
    address = compose.container("engine-rank-1").address
    with grpc.insecure_channel(f"{address}:{GRPC_PORTS['engine']}") as channel:
        return int(debug_pb2_grpc.DebugStub(channel).ReadOut(debug_pb2.ReadOutRequest()).counters["rank_steps"])


async def test_both_ranks_serve_a_chat(ranks: Compose) -> None:
    before = steps_followed(ranks)
    async with Client(ranks) as client:
        question = {"messages": user("Write about the sea."), "max_tokens": 20, "ignore_eos": True}
        whole = await client.post("/v1/chat/completions", **question)
        assert whole.status_code == 200
        assert whole.json()["choices"][0]["message"]["content"]
        streamed = await client.stream(**question)
        assert streamed.done
        assert streamed.text
        assert (await client.post("/v1/chat/completions", messages=[])).status_code == 400
        await client.wait_idle()
    assert steps_followed(ranks) >= before + 40


@pytest.mark.parametrize("victim", RANKS)
async def test_a_rank_that_crashes_ends_its_streams_and_comes_back(ranks: Compose, victim: str) -> None:
    async with Client(ranks) as client, running_streams(client) as streams:
        before = {name: ranks.container(name) for name in RANKS}
        before[victim].kill()
        await all_end_with_an_error_frame(streams)
        await until(client.answers, 90, lambda: f"the group is not in use again without {victim}")
        restarted = {name for name in RANKS if ranks.container(name).started != before[name].started}
        assert restarted == {victim}  # the other one keeps its weights
        await client.wait_idle()


async def test_a_rank_whose_network_is_cut_is_missed_and_joins_again(ranks: Compose) -> None:
    async with Client(ranks) as client, running_streams(client) as streams:
        cut = ranks.container("engine-rank-1")
        with cut.cut_off():
            await all_end_with_an_error_frame(streams)
        await until(client.answers, 90, lambda: "the group is not in use again")
        assert ranks.container("engine-rank-1").started == cut.started  # nobody restarted it
        await client.wait_idle()
