"""Rank 0's executor: sends each plan to the other ranks, and runs its own part with them."""

from __future__ import annotations

from services.engine.executor.torch_executor import TorchExecutor
from services.engine.plan import StepPlan, StepResult
from services.engine.ranks.errors import GroupLost
from services.engine.ranks.formation import Formation
from services.engine.ranks.group import RankGroup, open_store
from services.engine.ranks.link import RankLink


class LeadingGroup:
    """Rank 0's place in the group and its link to the others. Used by the engine thread."""

    def __init__(self, group: RankGroup, link: RankLink, host: str, form_timeout: float) -> None:
        """`host` is the address that the store listens on; `form_timeout` in seconds."""
        self.collectives = group
        self._link = link
        self._host = host
        self._form_timeout = form_timeout

    def form_first(self, max_pages: int) -> Formation:
        """Tells that rank 0 is loaded, and waits until all ranks have formed a group."""
        self._link.own_part_loaded(max_pages)
        while True:
            formation = self._link.wait_for_formation()
            if self._form(formation):
                return formation

    def form_again(self) -> None:
        """Forms the group that was offered, if it has not been taken up already."""
        formation = self._link.pending_formation()
        if formation is not None:
            self._form(formation)

    def send_plan(self, plan: StepPlan) -> None:
        """Raises GroupLost when there is no group."""
        self._link.send_plan(plan)

    def leave(self) -> None:
        self._link.group_left()
        self.collectives.leave()

    def _form(self, formation: Formation) -> bool:
        self.leave()
        store, port = open_store(self._host, self._form_timeout)
        self._link.store_open(formation.epoch, port)
        try:
            self.collectives.form(store, formation.own_host)
        except GroupLost as error:
            self._link.group_failed(formation.epoch, error)
            return False
        self._link.group_formed(formation.epoch)
        return True


class LeadingExecutor:
    """Implements `Executor`. A step that fails here leaves the ranks out of step, so it voids the group."""

    def __init__(self, inner: TorchExecutor, group: LeadingGroup) -> None:
        self.info = inner.info
        self._inner = inner
        self._group = group

    def execute(self, plan: StepPlan) -> StepResult:
        """Raises GroupLost, besides what a TorchExecutor raises."""
        try:
            self._group.send_plan(plan)
            return self._inner.execute(plan)
        except Exception:
            self._group.leave()
            raise

    def restore(self) -> None:
        """Forms the group anew, once the ranks are here."""
        self._group.form_again()

    def close(self) -> None:
        self._group.leave()
        self._inner.close()
