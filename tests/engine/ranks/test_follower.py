"""What a rank does with plans that are not the next one."""

from __future__ import annotations

import threading

import pytest
import torch

from services.engine.executor.model_runner import ModelRunner, RunnerOptions
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_shard
from services.engine.plan import StepPlan
from services.engine.ranks.errors import GroupLost, PlanOrderError
from services.engine.ranks.follower import Follower
from services.engine.ranks.group import RankGroup, open_store
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.part import RankPart
from services.engine.ranks.wire import plan_message
from services.pb.postroad.v1 import ranks_pb2
from tests.engine.executor.plans import Sequence
from tests.engine.models.reference import FAMILIES
from tests.engine.ranks.thread_ranks import LOOPBACK, TIMEOUT

CONFIG = ModelConfig.from_hf(FAMILIES["llama"])


def part(rank: int) -> RankPart:
    group = RankGroup(rank, 2, TIMEOUT, TIMEOUT)
    model = load_shard(Shard.of(CONFIG, rank, 2), random_weights(CONFIG, 0), torch.float32, "cpu", group)
    return RankPart(group, model, loaded=LoadedRank(8), options=RunnerOptions(collectives=group))


def plan(number: int) -> StepPlan:
    return StepPlan(number, [Sequence(1, [3, 1, 4], [0]).plan()])


class Ranks:
    """Rank 0's executor, and a follower that is given its plans by hand."""

    def __init__(self) -> None:
        self.leader = part(0)
        self.executor = TorchExecutor(ModelRunner(self.leader.model, num_pages=8, options=self.leader.options))
        self.follower = Follower(part(1), LOOPBACK, page_size=16, max_model_len=None, form_timeout=TIMEOUT)

    def form(self, epoch: int) -> None:
        store, port = open_store(LOOPBACK, TIMEOUT)
        message = ranks_pb2.FormGroup(epoch=epoch, store_port=port, num_pages=8)
        thread = threading.Thread(target=self.follower.form, args=(message,))
        thread.start()
        self.leader.group.form(store, LOOPBACK)
        thread.join()

    def step(self, led: int, followed: ranks_pb2.RankPlan) -> list[int]:
        """Rank 0 runs plan `led`, the other rank `followed`; the tokens."""
        errors: list[Exception] = []

        def follow() -> None:
            try:
                self.follower.execute(followed)
            except Exception as error:
                errors.append(error)
                self.follower.leave()

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            return self.executor.execute(plan(led)).token_ids[1]
        finally:
            thread.join()
            if errors:
                raise errors[0]


def message(number: int, epoch: int = 1) -> ranks_pb2.RankPlan:
    return plan_message(plan(number), epoch).plan


@pytest.fixture
def ranks() -> Ranks:
    ranks = Ranks()
    ranks.form(epoch=1)
    return ranks


def test_plans_in_order_may_begin_anywhere(ranks: Ranks) -> None:
    assert ranks.step(41, message(41)) == ranks.step(42, message(42))


@pytest.mark.parametrize(
    "wrong",
    [message(3), message(1), message(0), message(2, epoch=2)],
    ids=["one was missed", "twice", "an old one", "another group's"],
)
def test_fieldbug_39_a_plan_out_of_order_fails_on_every_rank(ranks: Ranks, wrong: ranks_pb2.RankPlan) -> None:
    first = ranks.step(1, message(1))
    with pytest.raises(PlanOrderError) as raised:
        ranks.step(2, wrong)
    assert isinstance(raised.value.__context__, GroupLost)  # what rank 0 got instead of a token
    ranks.form(epoch=2)
    assert ranks.step(7, message(7, epoch=2)) == first


def test_a_rank_in_no_group_knows_it(ranks: Ranks) -> None:
    assert not ranks.follower.is_alone
    ranks.follower.leave()
    assert ranks.follower.is_alone
    with pytest.raises(GroupLost):
        ranks.executor.execute(plan(1))
