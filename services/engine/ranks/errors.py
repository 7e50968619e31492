"""What ends a group of ranks, or keeps one from forming."""

from __future__ import annotations

import grpc

from services.common.errors import PostroadError, Unavailable
from services.engine.executor.errors import ExecutorLost


class GroupLost(ExecutorLost):
    """A rank is gone, hangs, or failed: what the group computes is void until it has formed anew."""


class PlanOrderError(RuntimeError):
    """A step plan that is not the next one: ranks that went on would compute different batches."""


class RankRefused(PostroadError):
    """A rank does not fit the group; the message names what differs."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    reason = "RANK_REFUSED"


class RankTaken(PostroadError):
    """Another process of that rank is in the group."""

    status = grpc.StatusCode.ALREADY_EXISTS
    reason = "RANK_TAKEN"


class RankLost(Unavailable):
    """The rank did not form the group in time: it is to join again."""

    reason = "RANK_LOST"
