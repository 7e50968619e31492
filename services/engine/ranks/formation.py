"""One coming together of the ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Formation:
    """What rank 0's engine thread is to form."""

    epoch: int
    num_pages: int  # of every rank's KV pool
    own_host: str  # the address at which the other ranks reach rank 0
