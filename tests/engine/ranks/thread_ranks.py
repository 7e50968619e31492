"""The ranks of a model as threads of this process, joined by real process groups on loopback or by stand-ins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from services.engine.executor.base import WaitForResult
from services.engine.executor.model_runner import ModelRunner, RunnerOptions
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.torch_follower import TorchFollower
from services.engine.models.decoder import Decoder
from services.engine.plan import StepPlan, StepResult
from services.engine.ranks.group import RankGroup, open_store, reach_store
from services.engine.ranks.process_groups import GLOO, Meeting
from services.engine.ranks.wire import plan_from, plan_message
from services.pb.postroad.v1 import ranks_pb2

LOOPBACK = "127.0.0.1"
TIMEOUT = 60.0  # seconds: the machine may be busy
T = TypeVar("T")
LoadPart = Callable[[RankGroup], Decoder]
MakeOptions = Callable[[RankGroup], RunnerOptions]


def together(size: int, work: Callable[[RankGroup], T], timeout: float = TIMEOUT, meeting: Meeting = GLOO) -> list[T]:
    """Runs `work` on every rank of a new group, each in a thread; the results in order of rank.

    `timeout` is that of collectives, in seconds.
    """
    store, port = open_store(LOOPBACK, TIMEOUT)

    def run(rank: int) -> T:
        group = RankGroup(rank, size, timeout, TIMEOUT, meeting=meeting)
        group.form(store if rank == 0 else reach_store(LOOPBACK, port, TIMEOUT), LOOPBACK)
        return work(group)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


class ThreadRanks:
    """Rank 0's executor; the others follow its plans, each as it comes off the wire. Implements `Executor`."""

    def __init__(self, leader: TorchExecutor, plans: list[SimpleQueue[bytes | None]], followers: list[Any]) -> None:
        self.info = leader.info
        self._leader = leader
        self._plans = plans
        self._followers = followers

    def execute(self, plan: StepPlan) -> StepResult:
        return self._start(plan)()

    def close(self) -> None:
        for queue in self._plans:
            queue.put(None)
        for thread in self._followers:
            thread.join()
        self._leader.close()

    def _start(self, plan: StepPlan) -> WaitForResult:
        message = plan_message(plan, epoch=1).SerializeToString()
        for queue in self._plans:
            queue.put(message)
        return self._leader.start(plan)


class OverlappedThreadRanks(ThreadRanks):
    """Implements `OverlappingExecutor`."""

    def launch(self, plan: StepPlan) -> WaitForResult:
        return self._start(plan)


def _plain(group: RankGroup) -> RunnerOptions:
    return RunnerOptions(collectives=group)


@contextmanager
def thread_ranks(
    size: int,
    load: LoadPart,
    *,
    num_pages: int = 64,
    page_size: int = 16,
    options: MakeOptions = _plain,
    meeting: Meeting = GLOO,
    kind: type[ThreadRanks] = ThreadRanks,
) -> Iterator[ThreadRanks]:
    """A model on `size` ranks; `load` gives each its part."""
    parts = together(size, lambda group: (load(group), options(group)), meeting=meeting)
    plans: list[SimpleQueue[bytes | None]] = [SimpleQueue() for _ in range(1, size)]
    sizes = () if (graphs := parts[0][1].graphs) is None else graphs.sizes

    def follow(part: tuple[Decoder, RunnerOptions], queue: SimpleQueue[bytes | None]) -> None:
        follower = TorchFollower(ModelRunner(part[0], num_pages, page_size, options=part[1]))
        follower.record_graphs(sizes)
        while (message := queue.get()) is not None:
            follower.execute(plan_from(ranks_pb2.ToRank.FromString(message).plan))

    threads = [
        threading.Thread(target=follow, args=(part, queue), daemon=True)
        for part, queue in zip(parts[1:], plans, strict=True)
    ]
    for thread in threads:
        thread.start()
    leader = TorchExecutor(ModelRunner(parts[0][0], num_pages, page_size, options=parts[0][1]))
    leader.record_graphs()
    ranks = kind(leader, plans, threads)
    try:
        yield ranks
    finally:
        ranks.close()
