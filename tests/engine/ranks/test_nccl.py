"""What a group does over NCCL, which waits for a lost rank for ever; by a stand-in, on the CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
import torch

from services.engine.executor.base import WaitForResult
from services.engine.executor.decode_graphs import GraphOptions
from services.engine.executor.flashinfer_attention import FlashInferAttention
from services.engine.executor.model_runner import ModelRunner, RunnerOptions
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.plan import PENDING_TOKEN, SamplingJob, SequencePlan, StepPlan, StepResult
from services.engine.ranks.errors import GroupLost
from services.engine.ranks.follower import Follower
from services.engine.ranks.formation import Formation
from services.engine.ranks.group import RankGroup
from services.engine.ranks.leading_executor import LeadingGroup, OverlappedLeadingExecutor
from services.engine.ranks.link import LinkListener, RankLink
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.part import RankPart
from services.engine.ranks.process_groups import GlooMeeting, NcclMeeting, meeting_on
from services.pb.postroad.v1 import ranks_pb2
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.plans import Sequence
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.models.reference import FAMILIES
from tests.engine.ranks.nccl_on_cpu import NcclOnCpu
from tests.engine.ranks.test_equal_tokens import part_of
from tests.engine.ranks.thread_ranks import LOOPBACK, TIMEOUT, together

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]
STEP_SECONDS = 1.0  # for one that takes a hundredth of that


def test_the_device_says_how_ranks_meet() -> None:
    assert isinstance(meeting_on("cpu"), GlooMeeting)
    assert isinstance(meeting_on("cuda"), NcclMeeting)


def test_sums_are_everywhere_and_gathered_tensors_at_rank_0_and_broadcast_ones_are_its_own() -> None:
    def work(group: RankGroup) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        x, own = torch.full((2, 3), float(group.rank + 1)), torch.tensor([group.rank + 7])
        total, parts = group.sum(x.clone()), group.gather(x)
        group.broadcast(own)
        return total, parts, own

    results = together(3, work, meeting=NcclMeeting(NcclOnCpu()))
    for total, _, shared in results:
        assert torch.equal(total, torch.full((2, 3), 6.0))
        assert shared.tolist() == [7]
    assert [float(part[0, 0]) for part in results[0][1]] == [1.0, 2.0, 3.0]
    assert results[1][1] == results[2][1] == []


def test_a_rank_that_rehearses_needs_no_other() -> None:
    for rank in range(2):
        group, x = RankGroup(rank, 2, STEP_SECONDS, STEP_SECONDS), torch.ones(3)
        with group.rehearsal():
            assert group.sum(x) is x
            assert len(group.gather(x)) == (2 if rank == 0 else 0)
            group.broadcast(x)
        with pytest.raises(GroupLost):
            group.sum(x)


class Listener(LinkListener):
    """What rank 0's engine thread tells."""

    def __init__(self) -> None:
        self.stores: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self.plans: asyncio.Queue[ranks_pb2.RankPlan] = asyncio.Queue()
        self.log: list[str] = []

    def on_store_open(self, epoch: int, port: int) -> None:
        self.stores.put_nowait((epoch, port))

    def on_plan(self, message: ranks_pb2.ToRank, made: float) -> None:
        self.plans.put_nowait(message.plan)

    def on_group_formed(self, epoch: int) -> None:
        self.log.append(f"formed {epoch}")

    def on_group_failed(self, epoch: int, reason: str) -> None:
        self.log.append(f"failed {epoch}: {reason}")


class Ranks:
    """Rank 0 in a thread, and another that does what the test tells it to."""

    def __init__(self) -> None:
        self.recorders: dict[int, list[RecorderOnCpu]] = {0: [], 1: []}
        self.library = NcclOnCpu(num_graphs=self._num_graphs)
        self.listener = Listener()
        self.link = RankLink(self.listener)
        leading, following = self._part(0), self._part(1)
        self._group = LeadingGroup(leading.group, self.link, LOOPBACK, TIMEOUT)
        self._runner = partial(ModelRunner, leading.model, page_size=16, options=leading.options)
        self.follower = Follower(following, LOOPBACK, page_size=16, max_model_len=None, form_timeout=TIMEOUT)
        self.leader: OverlappedLeadingExecutor

    async def form_first(self) -> None:
        def lead() -> None:
            self.leader = OverlappedLeadingExecutor.of_first_group(
                lambda num_pages: TorchExecutor(self._runner(num_pages)), self._group
            )

        await self._form(1, lead)

    async def form_again(self, epoch: int) -> None:
        await self._form(epoch, self.leader.restore)

    async def step(self, number: int, *, follows: bool = True) -> StepResult:
        """A decode, which is a graph."""
        return (await self.launch(number, Sequence(1, [3], [0]).plan(), follows=follows))()

    async def launch(self, number: int, sequence: SequencePlan, *, follows: bool = True) -> WaitForResult:
        launching = asyncio.create_task(asyncio.to_thread(self.leader.launch, StepPlan(number, [sequence])))
        plan = await self.listener.plans.get()
        if follows:
            try:
                await asyncio.to_thread(self.follower.execute, plan)
            except GroupLost:  # as its thread does
                self.follower.leave()
        return await launching

    async def _form(self, epoch: int, lead: Callable[[], None]) -> None:
        self.link.offer(Formation(epoch, 8, LOOPBACK))
        leading = asyncio.create_task(asyncio.to_thread(lead))
        epoch, port = await self.listener.stores.get()
        message = ranks_pb2.FormGroup(epoch=epoch, store_port=port, num_pages=8, graph_sizes=[1, 2])
        await asyncio.to_thread(self.follower.form, message)
        await leading

    def _part(self, rank: int) -> RankPart:
        def record() -> RecorderOnCpu:
            self.recorders[rank].append(RecorderOnCpu())
            return self.recorders[rank][-1]

        group = RankGroup(rank, 2, STEP_SECONDS, TIMEOUT, meeting=NcclMeeting(self.library))
        attention = partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=64)
        options = RunnerOptions(attention, GraphOptions(record, (1, 2) if rank == 0 else ()), collectives=group)
        return RankPart(group, part_of(LLAMA)(group), loaded=LoadedRank(8), options=options)

    def _num_graphs(self, rank: int) -> int:
        told = [line.split()[0] for recorder in self.recorders[rank] for line in recorder.log]
        return told.count("record") - told.count("reset")


async def test_a_rank_that_does_not_come_is_given_up_and_the_group_forms_again() -> None:
    ranks = Ranks()
    await ranks.form_first()
    tokens = (await ranks.step(1)).token_ids
    with pytest.raises(GroupLost, match="rank 0 waited for another rank in vain"):
        await ranks.step(2, follows=False)
    assert ranks.library.log
    with pytest.raises(GroupLost):
        ranks.leader.execute(StepPlan(3, [Sequence(1, [3], [0]).plan()]))
    await ranks.form_again(2)
    assert (await ranks.step(4)).token_ids == tokens
    assert ranks.listener.log == ["formed 1", "formed 2"]
    assert not any("for ever" in line for line in ranks.library.log)
    for rank, recorders in ranks.recorders.items():
        first, second = recorders  # graphs hold the collectives of one group
        assert first.log[-2:] == ["reset 1", "reset 2"], f"of rank {rank}"
        assert second.log[-1] == "replay 1", f"of rank {rank}"
    ranks.leader.close()
    ranks.follower.leave()


async def test_a_step_that_is_launched_ahead_gets_its_token_in_the_group() -> None:
    ranks = Ranks()
    await ranks.form_first()
    first = Sequence(1, [3], [0])
    wait = await ranks.launch(1, first.plan())
    pending = SamplingJob(first.params, [3], [], num_pending=1)
    wait_ahead = await ranks.launch(2, SequencePlan(1, [PENDING_TOKEN], 1, [0], [pending]))
    [token], [token_ahead] = wait().token_ids[1], wait_ahead().token_ids[1]
    again = Sequence(1, [3, token], [0], computed=1)
    assert (await ranks.launch(3, again.plan()))().token_ids[1] == [token_ahead]
    with pytest.raises(GroupLost):
        await ranks.launch(4, again.plan(), follows=False)
    ranks.leader.close()
    ranks.follower.leave()


async def test_a_collective_that_fails_leaves_the_group_in_order() -> None:
    """The graphs first: inside the step nobody could drop them, and the abort would wait for them for ever."""
    ranks = Ranks()
    await ranks.form_first()
    await ranks.step(1)
    ranks.library.is_broken = True
    with pytest.raises(GroupLost, match="remote process exited"):
        await ranks.step(2)
    assert ranks.follower.is_alone
    ranks.library.is_broken = False
    await ranks.form_again(2)
    await ranks.step(3)
    assert not any("for ever" in line for line in ranks.library.log)
    ranks.leader.close()
    ranks.follower.leave()


async def test_a_rank_that_is_lost_while_graphs_are_recorded_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.engine.ranks.leading_executor.RECORD_SECONDS", STEP_SECONDS)
    ranks = Ranks()
    await ranks.form_first()
    monkeypatch.setattr(ranks.follower._executor, "record_graphs", lambda _: None)  # it warms nothing up
    ranks.link.offer(Formation(2, 8, LOOPBACK))
    leading = asyncio.create_task(asyncio.to_thread(ranks.leader.restore))
    epoch, port = await ranks.listener.stores.get()
    message = ranks_pb2.FormGroup(epoch=epoch, store_port=port, num_pages=8, graph_sizes=[1, 2])
    await asyncio.to_thread(ranks.follower.form, message)
    await leading
    assert ranks.listener.log == ["formed 1", "failed 2: rank 0 waited for another rank in vain"]
    monkeypatch.undo()
    await ranks.form_again(3)
    await ranks.step(1)
    ranks.leader.close()
    ranks.follower.leave()
