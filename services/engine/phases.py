"""Where a sequence's time in the engine went."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from services.engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Phases:
    """Three phases, one after another, in nanoseconds. One that was not reached is 0, one that did not end runs on."""

    schedule_wait_ns: int  # from arrival to the first step that computed a part of the sequence
    prefill_ns: int  # from there to the first token
    decode_ns: int  # from the first token to the last one

    @classmethod
    def of(cls, sequence: Sequence) -> Self:
        """Of a sequence that has its first token or has ended."""
        scheduled, first, last = sequence.first_scheduled_ns, sequence.first_token_ns, sequence.last_token_ns
        if scheduled is None:
            return cls(time.monotonic_ns() - sequence.arrival_ns, 0, 0)
        wait = scheduled - sequence.arrival_ns
        if first is None or last is None:
            return cls(wait, time.monotonic_ns() - scheduled, 0)
        return cls(wait, first - scheduled, last - first)

    def named(self) -> tuple[tuple[str, int], ...]:
        """Name and nanoseconds of each, in order."""
        return (
            ("schedule_wait", self.schedule_wait_ns),
            ("prefill", self.prefill_ns),
            ("decode", self.decode_ns),
        )
