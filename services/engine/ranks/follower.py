"""What a rank that does not lead computes: it forms the group when told to, and runs one plan after another."""

from __future__ import annotations

from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.torch_follower import TorchFollower
from services.engine.ranks.addresses import own_address
from services.engine.ranks.errors import PlanOrderError
from services.engine.ranks.group import RECORD_SECONDS, reach_store
from services.engine.ranks.part import RankPart
from services.engine.ranks.wire import plan_from
from services.pb.postroad.v1 import ranks_pb2


class Follower:
    """Used by one thread."""

    def __init__(
        self, part: RankPart, leader_host: str, page_size: int, max_model_len: int | None, form_timeout: float
    ) -> None:
        """`form_timeout` in seconds."""
        self._part = part
        self._leader_host = leader_host
        self._page_size = page_size
        self._max_model_len = max_model_len
        self._form_timeout = form_timeout
        self._executor: TorchFollower | None = None
        self._num_pages = 0
        self._epoch: int | None = None  # of the group that it is in
        self._last: int | None = None  # number of the plan that it ran last, in this epoch

    def form(self, message: ranks_pb2.FormGroup) -> None:
        """Joins a new group, with an empty KV pool. Raises GroupLost, or OSError for a host that has no address."""
        self.leave()
        executor = self._with_empty_pool(message.num_pages)
        store = reach_store(self._leader_host, message.store_port, self._form_timeout)
        group = self._part.group
        group.form(store, own_address(self._leader_host))
        with group.timed(RECORD_SECONDS):
            executor.record_graphs(message.graph_sizes)
        self._epoch = message.epoch

    @property
    def is_alone(self) -> bool:
        """Whether it is in no group: plans that still come are of one that it has left."""
        return self._epoch is None

    def execute(self, message: ranks_pb2.RankPlan) -> None:
        """Runs a step or, on a CUDA device, launches it.

        Raises PlanOrderError, GroupLost, or whatever makes a step fail; then it is to `leave`.
        """
        if message.epoch != self._epoch:
            raise PlanOrderError(f"a plan of epoch {message.epoch} came in epoch {self._epoch}")
        if self._last is not None and message.number != self._last + 1:
            raise PlanOrderError(f"plan {message.number} came after plan {self._last}")
        assert self._executor is not None, "a group was formed without a KV pool"
        step = self._part.group.begin_step()
        step.ends_at(self._executor.execute(plan_from(message)))
        self._last = message.number

    def leave(self) -> None:
        """Leaves the group: plans of its epoch are void."""
        self._epoch = self._last = None
        if self._executor is not None:
            self._executor.drop_graphs()  # they hold the group's collectives
        self._part.group.leave()

    def _with_empty_pool(self, num_pages: int) -> TorchFollower:
        if self._executor is not None and num_pages == self._num_pages:
            self._executor.clear()
            return self._executor
        self._executor = None  # its memory first
        part = self._part
        executor = TorchFollower(ModelRunner(part.model, num_pages, self._page_size, self._max_model_len, part.options))
        self._executor, self._num_pages = executor, num_pages
        return executor
