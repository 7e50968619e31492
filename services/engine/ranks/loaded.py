"""What a rank has once its part of the weights is in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """Field for field `postroad.v1.RankLoaded`."""

    max_pages: int  # of its KV pool, for which it has room
    gpu_uuid: str = ""  # of the GPU that it computes on; empty on a CPU
