"""Rank 0's executor: sends each plan to the other ranks, and runs its own part with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self

from services.engine.executor.base import ExecutorInfo, WaitForResult
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.plan import StepPlan, StepResult
from services.engine.ranks.errors import GroupLost
from services.engine.ranks.formation import Formation
from services.engine.ranks.group import RECORD_SECONDS, RankGroup, open_store
from services.engine.ranks.link import RankLink
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.step_clock import TimedStep


class LeadingGroup:
    """Rank 0's place in the group and its link to the others. Used by the engine thread."""

    def __init__(self, group: RankGroup, link: RankLink, host: str, form_timeout: float) -> None:
        """`host` is the address that the store listens on; `form_timeout` in seconds."""
        self.collectives = group
        self._link = link
        self._host = host
        self._form_timeout = form_timeout

    def tell_loaded(self, loaded: LoadedRank, graph_sizes: Sequence[int]) -> None:
        """Rank 0 has its weights, and will have graphs of decodes for these numbers of rows."""
        self._link.own_part_loaded(loaded, graph_sizes)

    def wait_for_formation(self) -> Formation:
        """Sleeps until all ranks are here."""
        return self._link.wait_for_formation()

    def pending_formation(self) -> Formation | None:
        """The one that was offered, if it has not been taken up already."""
        return self._link.pending_formation()

    def form(self, formation: Formation, prepare: Callable[[], None]) -> bool:
        """Forms the group; `prepare` is what the ranks do together before the first step. False if one did not come."""
        self.leave()
        store, port = open_store(self._host, self._form_timeout)
        self._link.store_open(formation.epoch, port)
        try:
            self.collectives.form(store, formation.own_host)
            with self.collectives.timed(RECORD_SECONDS):
                prepare()
        except GroupLost as error:
            self._link.group_failed(formation.epoch, error)
            return False
        self._link.group_formed(formation.epoch)
        return True

    def send_plan(self, plan: StepPlan) -> None:
        """Raises GroupLost when there is no group."""
        self._link.send_plan(plan)

    def leave(self) -> None:
        self._link.group_left()
        self.collectives.leave()


class LeadingExecutor:
    """Implements `Executor`. A step that fails here leaves the ranks out of step, so it voids the group."""

    def __init__(self, inner: TorchExecutor, group: LeadingGroup) -> None:
        """Once the group has formed."""
        self.info: ExecutorInfo = inner.info
        self._inner = inner
        self._group = group

    @classmethod
    def of_first_group(cls, make: Callable[[int], TorchExecutor], group: LeadingGroup) -> Self:
        """Waits until all ranks have formed a group. `make` makes an executor with so many pages."""
        inner: TorchExecutor | None = None
        while True:
            formation = group.wait_for_formation()
            inner = inner or make(formation.num_pages)
            inner.drop_graphs()
            if group.form(formation, inner.record_graphs):
                return cls(inner, group)

    def execute(self, plan: StepPlan) -> StepResult:
        """Raises GroupLost, besides what a TorchExecutor raises."""
        return self._start(plan)()

    def restore(self) -> None:
        """Forms the group anew, once the ranks are here."""
        formation = self._group.pending_formation()
        if formation is not None:
            self._leave()
            self._group.form(formation, self._inner.record_graphs)

    def close(self) -> None:
        self._leave()
        self._inner.close()

    def _start(self, plan: StepPlan) -> WaitForResult:
        with self._voided_by_failure():
            step = self._group.collectives.begin_step()
            self._group.send_plan(plan)
            return partial(self._finish, self._inner.start(plan), step)

    def _finish(self, wait: WaitForResult, step: TimedStep) -> StepResult:
        with self._voided_by_failure():
            result = wait()
            step.end()
            self._group.collectives.require_whole()
            return result

    @contextmanager
    def _voided_by_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            lost = self._why_lost()
            self._leave()
            if lost is None or isinstance(error, GroupLost):
                raise
            raise lost from error  # what failed computed with tensors that are void

    def _why_lost(self) -> GroupLost | None:
        try:
            self._group.collectives.require_whole()
        except GroupLost as error:
            return error
        return None

    def _leave(self) -> None:
        """The graphs first: they hold the group's collectives."""
        self._inner.drop_graphs()
        self._group.leave()


class OverlappedLeadingExecutor(LeadingExecutor):
    """Implements `OverlappingExecutor`: the ranks are given a step while the one before it runs."""

    def launch(self, plan: StepPlan) -> WaitForResult:
        return self._start(plan)
