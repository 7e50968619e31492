"""Sequences in the order in which they are served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from services.engine.scheduler.sequence import Sequence


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


class RankedQueue:
    """A list sorted by `Sequence.rank`, which no two sequences share.

    A heap would make removal from the middle (an abort) a search; with the thousand entries that may wait, moving the
    tail of a list costs less.
    """

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    @property
    def first(self) -> Sequence:
        return self._sequences[0]

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError if the sequence is not in the queue."""
        index = bisect_left(self._sequences, sequence.rank, key=_rank)
        if index == len(self._sequences) or self._sequences[index] is not sequence:
            raise ValueError(f"sequence {sequence.sequence_id} is not in the queue")
        del self._sequences[index]

    def clear(self) -> None:
        self._sequences.clear()
