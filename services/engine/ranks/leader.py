"""Rank 0's view of its ranks: who is here, whether the group is whole, and what each is told.

Everything here runs on the event loop. The group is `gathering` until every rank has joined and loaded, `forming` while
the ranks connect with one another, and `whole` from then until one of them is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from services.common.errors import NotReady, PostroadError
from services.engine.ranks.addresses import own_address
from services.engine.ranks.errors import RankLost, RankRefused, RankTaken
from services.engine.ranks.formation import Formation
from services.engine.ranks.identity import RankIdentity
from services.engine.ranks.link import RankLink
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.metrics import RankMetrics
from services.engine.ranks.wire import loaded_from
from services.pb.postroad.v1 import ranks_pb2

RETRY_SECONDS = 0.5  # after a formation that failed although every rank was here


class GroupState(Enum):
    GATHERING = auto()
    FORMING = auto()
    WHOLE = auto()


class GroupListener(Protocol):
    """Told on the event loop."""

    def on_group_whole(self) -> None:
        """Steps can be run."""

    def on_group_lost(self, reason: str) -> None:
        """No step can be run until the next `on_group_whole`."""

    def on_group_offered(self) -> None:
        """The link has a formation for the engine thread."""


@dataclass(slots=True, eq=False)
class Member:
    """One of the other ranks, as long as its stream lives."""

    rank: int
    host: str  # its address
    outbox: asyncio.Queue[ranks_pb2.ToRank | None] = field(default_factory=asyncio.Queue)  # None ends the stream
    loaded: LoadedRank | None = None  # once its weights are
    formed_epoch: int = 0
    end: PostroadError | None = None  # why the stream is ended from here


@dataclass(slots=True)
class _SentPlan:
    number: int
    made: float
    waiting_for: int  # ranks that have not begun it


class RankLeader:
    """Implements LinkListener. `listener` may be attached later than the first rank joins."""

    def __init__(self, size: int, metrics: RankMetrics, log: FilteringBoundLogger) -> None:
        """To be made on the event loop. A group of one is always whole."""
        self.link = RankLink(self)
        self.state = GroupState.WHOLE if size == 1 else GroupState.GATHERING
        self._size = size
        self._metrics = metrics
        self._log = log
        self._listener: GroupListener | None = None
        self._identity: RankIdentity | None = None
        self._own: LoadedRank | None = None
        self._graph_sizes: Sequence[int] = ()
        self._num_pages: int | None = None  # once decided: the scheduler's books are made for it
        self._members: dict[int, Member] = {}
        self._epoch = 0
        self._sent: _SentPlan | None = None

    def attach(self, listener: GroupListener) -> None:
        """From now on `listener` is told, and at once how things stand."""
        self._listener = listener
        if self.state is GroupState.WHOLE:
            listener.on_group_whole()
            return
        listener.on_group_lost(self.missing)
        if self.state is GroupState.FORMING:
            listener.on_group_offered()

    @property
    def missing(self) -> str:
        """Which ranks are not here or not loaded, in words."""
        ready = {rank for rank, member in self._members.items() if member.loaded is not None}
        ranks = [str(rank) for rank in range(1, self._size) if rank not in ready]
        return f"{len(ranks)} of {self._size} ranks are missing: {', '.join(ranks)}" if ranks else "the ranks connect"

    def join(self, request: ranks_pb2.JoinGroup, identity: RankIdentity, host: str) -> Member:
        """Raises RankRefused, RankTaken or NotReady."""
        if self._size != identity.tensor_parallel_size:
            raise RankRefused(
                f"rank {request.rank} does not fit the group: tensor-parallel-size is "
                f"{identity.tensor_parallel_size} there and {self._size} at rank 0"
            )
        if not 1 <= request.rank < self._size:
            raise RankRefused(f"rank {request.rank} is not 1 to {self._size - 1}")
        if self._identity is None:
            raise NotReady("rank 0 has not read its model's files yet")
        self._identity.require(identity, request.rank)
        if request.rank in self._members:
            raise RankTaken(f"a process with rank {request.rank} is in the group already")
        member = self._members[request.rank] = Member(request.rank, host)
        self._metrics.connected.set(1 + len(self._members))
        self._log.info("rank joined", rank=member.rank, host=host)
        member.outbox.put_nowait(ranks_pb2.ToRank(accepted=ranks_pb2.RankAccepted()))
        return member

    def leave(self, member: Member) -> None:
        """Its stream has ended."""
        del self._members[member.rank]
        member.outbox.put_nowait(None)
        self._metrics.connected.set(1 + len(self._members))
        self._log.info("rank left", rank=member.rank)
        if member.loaded is not None:
            self.lose(f"rank {member.rank} is gone")

    def on_message(self, member: Member, message: ranks_pb2.FromRank) -> None:
        """What a member says after it has joined."""
        match message.WhichOneof("message"):
            case "loaded":
                member.loaded = loaded_from(message.loaded)
                self._log.info("rank loaded", rank=member.rank, max_pages=member.loaded.max_pages)
                self._form_if_all_here()
            case "formed":
                member.formed_epoch = message.formed.epoch
            case "begun":
                self._note_begun(message.begun.number)
            case "failed" if message.failed.epoch == self._epoch:
                self.lose(f"rank {member.rank} failed: {message.failed.message}")

    def lose(self, reason: str) -> None:
        """The group, if there is one, is void; it forms again as soon as every rank is here."""
        if self.state is GroupState.GATHERING or self._size == 1:
            return
        was_whole = self.state is GroupState.WHOLE
        self.state, self._sent = GroupState.GATHERING, None
        self._log.warning("rank group lost", reason=reason, epoch=self._epoch)
        if was_whole and self._listener is not None:
            self._listener.on_group_lost(reason)
        if was_whole:
            self._form_if_all_here()
        else:
            self._form_later()

    def on_identified(self, identity: RankIdentity) -> None:
        self._identity = identity

    def on_own_part_loaded(self, loaded: LoadedRank, graph_sizes: Sequence[int]) -> None:
        self._own, self._graph_sizes = loaded, graph_sizes
        self._log.info("waiting for ranks", missing=self.missing)
        self._form_if_all_here()

    def on_store_open(self, epoch: int, port: int) -> None:
        if epoch != self._epoch or self.state is not GroupState.FORMING or self._num_pages is None:
            return
        form = ranks_pb2.FormGroup(
            epoch=epoch, store_port=port, num_pages=self._num_pages, graph_sizes=self._graph_sizes
        )
        for member in self._members.values():
            member.outbox.put_nowait(ranks_pb2.ToRank(form=form))

    def on_group_formed(self, epoch: int) -> None:
        if epoch != self._epoch or self.state is not GroupState.FORMING:
            return  # lost meanwhile
        self.state = GroupState.WHOLE
        self._metrics.formed.inc()
        self._log.info("rank group formed", epoch=epoch, ranks=self._size, pages=self._num_pages)
        if self._listener is not None:
            self._listener.on_group_whole()

    def on_group_failed(self, epoch: int, reason: str) -> None:
        if epoch != self._epoch or self.state is not GroupState.FORMING:
            return
        self._log.warning("rank group not formed", reason=reason, epoch=epoch)
        self.state = GroupState.GATHERING
        for member in self._members.values():
            if member.formed_epoch != epoch:  # it hangs, or cannot reach the others
                self._send_away(member, RankLost(f"rank {member.rank} did not form the group in time"))
        self._form_later()

    def on_plan(self, message: ranks_pb2.ToRank, made: float) -> None:
        if message.plan.epoch != self._epoch or self.state is not GroupState.WHOLE:
            return  # its step fails by itself
        self._sent = _SentPlan(message.plan.number, made, len(self._members))
        for member in self._members.values():
            member.outbox.put_nowait(message)

    def _note_begun(self, number: int) -> None:
        if self._sent is None or self._sent.number != number:
            return
        self._sent.waiting_for -= 1
        if self._sent.waiting_for == 0:
            self._metrics.plan_seconds.observe(time.perf_counter() - self._sent.made)

    def _form_later(self) -> None:
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._form_if_all_here)

    def _form_if_all_here(self) -> None:
        if self.state is not GroupState.GATHERING or self._own is None:
            return
        self._send_away_who_shares_a_gpu(self._own)
        loaded = [member.loaded for member in self._members.values() if member.loaded is not None]
        if len(loaded) < self._size - 1:
            return
        if self._num_pages is None:
            self._num_pages = min(self._own.max_pages, *(rank.max_pages for rank in loaded))
        self.state = GroupState.FORMING
        self._epoch += 1
        a_member = next(iter(self._members.values()))
        self.link.offer(Formation(self._epoch, self._num_pages, own_address(a_member.host)))
        if self._listener is not None:
            self._listener.on_group_offered()

    def _send_away_who_shares_a_gpu(self, own: LoadedRank) -> None:
        """NCCL would not connect the ranks, however often they tried."""
        ranks = {own.gpu_uuid: 0}
        for member in self._members.values():
            if member.loaded is None or not member.loaded.gpu_uuid:
                continue
            other = ranks.setdefault(member.loaded.gpu_uuid, member.rank)
            if other != member.rank:
                reason = f"rank {member.rank} is on the same GPU as rank {other}: {member.loaded.gpu_uuid}"
                self._send_away(member, RankRefused(reason))

    def _send_away(self, member: Member, reason: PostroadError) -> None:
        member.end, member.loaded = reason, None
        member.outbox.put_nowait(None)
