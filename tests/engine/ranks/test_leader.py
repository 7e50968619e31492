"""Rank 0's side of a group's life, over gRPC with a rank whose messages the test sends itself; no model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import structlog
from prometheus_client import CollectorRegistry

from services.common.servers import StationServer
from services.engine.plan import StepPlan
from services.engine.ranks.errors import GroupLost, RankLost, RankRefused
from services.engine.ranks.identity import RankIdentity
from services.engine.ranks.leader import GroupState, RankLeader
from services.engine.ranks.leader_stream import LeaderStream
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.metrics import RankMetrics
from services.engine.ranks.servicer import SERVICE, RanksServicer
from services.engine.ranks.wire import identity_message
from services.pb.postroad.v1 import debug_pb2, ranks_pb2, ranks_pb2_grpc
from tests.support.polling import WAIT_SECONDS, until

IDENTITY = RankIdentity("1", 2, "abc", "float32", 16, 0, "cpu", "none", "float32")
SAY = ranks_pb2.FromRank


class Listener:
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_group_whole(self) -> None:
        self.told.append("whole")

    def on_group_lost(self, reason: str) -> None:
        self.told.append(f"lost: {reason}")

    def on_group_offered(self) -> None:
        self.told.append("offered")


class Rank:
    """The only other rank."""

    def __init__(self, address: str) -> None:
        self.heard: asyncio.Queue[ranks_pb2.ToRank] = asyncio.Queue()
        self.stream = LeaderStream(address)
        join = ranks_pb2.JoinGroup(rank=1, identity=identity_message(IDENTITY))
        self.following = asyncio.create_task(self.stream.follow(join, self.heard.put_nowait))

    async def next(self, kind: str) -> ranks_pb2.ToRank:
        message = await asyncio.wait_for(self.heard.get(), WAIT_SECONDS)
        assert message.WhichOneof("message") == kind
        return message


class Setting:
    def __init__(self) -> None:
        log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ""])
        self.registry = CollectorRegistry()
        self.leader = RankLeader(2, RankMetrics(self.registry), log)
        self.server = StationServer(SERVICE, "127.0.0.1:0", debug_pb2.ReadOutResponse, log)
        ranks_pb2_grpc.add_RanksServicer_to_server(RanksServicer(self.leader, log), self.server.server)
        self.listener = Listener()

    async def form(self, rank: Rank) -> int:
        """What engine thread and rank do when a group is offered; the epoch."""
        link = self.leader.link
        formation = await asyncio.to_thread(link.wait_for_formation)
        link.store_open(formation.epoch, 4711)
        form = (await rank.next("form")).form
        assert (form.epoch, form.store_port, form.num_pages) == (formation.epoch, 4711, 7)
        assert formation.num_pages == 7
        assert list(form.graph_sizes) == [1, 4]
        rank.stream.send(SAY(formed=ranks_pb2.GroupFormed(epoch=form.epoch)))
        link.group_formed(formation.epoch)
        await until(lambda: self.leader.state is GroupState.WHOLE)
        return formation.epoch

    def sample(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)


@pytest.fixture
async def setting() -> AsyncIterator[Setting]:
    setting = Setting()
    await setting.server.start()
    setting.leader.link.identified(IDENTITY)
    setting.leader.link.own_part_loaded(LoadedRank(9, "GPU-0"), (1, 4))
    try:
        yield setting
    finally:
        await setting.server.server.stop(0)


@pytest.fixture
def loaded_rank(setting: Setting) -> Callable[..., object]:
    @asynccontextmanager
    async def make(gpu_uuid: str = "GPU-1") -> AsyncIterator[Rank]:
        rank = Rank(f"127.0.0.1:{setting.server.port}")
        await rank.next("accepted")
        rank.stream.send(SAY(loaded=ranks_pb2.RankLoaded(max_pages=7, gpu_uuid=gpu_uuid)))
        try:
            yield rank
        finally:
            rank.following.cancel()
            await asyncio.gather(rank.following, return_exceptions=True)
            await rank.stream.close()

    return make


async def test_a_group_is_whole_from_its_forming_to_a_failure_and_forms_again(setting, loaded_rank) -> None:  # type: ignore[no-untyped-def]
    setting.leader.attach(setting.listener)
    assert setting.listener.told == ["lost: 1 of 2 ranks are missing: 1"]
    async with loaded_rank() as rank:
        epoch = await setting.form(rank)
        setting.leader.link.send_plan(StepPlan(5, []))
        plan = (await rank.next("plan")).plan
        assert (plan.number, plan.epoch) == (5, epoch)
        rank.stream.send(SAY(begun=ranks_pb2.StepBegun(number=5)))
        await until(lambda: setting.sample("postroad_rank_plan_seconds_count") == 1)
        rank.stream.send(SAY(failed=ranks_pb2.RankFailed(epoch=epoch, message="out of memory")))
        assert await setting.form(rank) == epoch + 1
        rank.stream.send(SAY(failed=ranks_pb2.RankFailed(epoch=epoch, message="late")))  # of the group before
        setting.leader.link.send_plan(StepPlan(6, []))
        assert (await rank.next("plan")).plan.epoch == epoch + 1
    await until(lambda: setting.leader.state is GroupState.GATHERING)
    assert setting.listener.told[1:] == [
        "offered",
        "whole",
        "lost: rank 1 failed: out of memory",
        "offered",
        "whole",
        "lost: rank 1 is gone",
    ]
    assert setting.sample("postroad_rank_groups_formed_total") == 2
    assert setting.sample("postroad_ranks_connected") == 1


async def test_a_failed_step_at_rank_0_makes_a_new_group(setting, loaded_rank) -> None:  # type: ignore[no-untyped-def]
    async with loaded_rank() as rank:
        epoch = await setting.form(rank)
        setting.leader.link.group_left()
        with pytest.raises(GroupLost):
            setting.leader.link.send_plan(StepPlan(1, []))
        setting.leader.lose("a step failed")
        assert await setting.form(rank) == epoch + 1


async def test_a_rank_that_does_not_form_the_group_is_sent_away(setting, loaded_rank) -> None:  # type: ignore[no-untyped-def]
    link = setting.leader.link
    async with loaded_rank() as rank:
        formation = await asyncio.to_thread(link.wait_for_formation)
        link.store_open(formation.epoch, 4711)
        await rank.next("form")
        link.group_failed(formation.epoch, GroupLost("nobody came"))
        with pytest.raises(RankLost):
            await asyncio.wait_for(rank.following, WAIT_SECONDS)
    async with loaded_rank() as rank:  # it may try again
        assert await setting.form(rank) > formation.epoch


async def test_a_rank_on_the_gpu_of_another_is_refused(setting, loaded_rank) -> None:  # type: ignore[no-untyped-def]
    async with loaded_rank(gpu_uuid="GPU-0") as rank:
        with pytest.raises(RankRefused, match="rank 1 is on the same GPU as rank 0: GPU-0"):
            await asyncio.wait_for(rank.following, WAIT_SECONDS)
    async with loaded_rank() as rank:
        await setting.form(rank)
