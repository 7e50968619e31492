"""The states of a prompt's tokens → one vector, however the prompt is cut into steps."""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from services.engine.plan import States


class Pooling(Enum):
    """Meanings: `postroad.v1.Pooling`."""

    LAST = auto()
    MEAN = auto()


class Pooler:
    """One prompt's. It takes the states of the tokens that count, each once and in order."""

    def __init__(self, pooling: Pooling, prompt_length: int) -> None:
        """`prompt_length`: tokens."""
        self._first = prompt_length - 1 if pooling is Pooling.LAST else 0
        self._num_taken = 0
        # Of float64, and added up one after another: the sum is the same however the states arrive.
        self._sum = np.zeros(0, np.float64)

    @property
    def num_dispensable(self) -> int:
        """Leading tokens of the prompt whose states are not wanted, or not any more."""
        return self._first + self._num_taken

    def rows(self, start: int, end: int) -> range:
        """Which tokens of a chunk, which has the prompt's tokens `start` … `end - 1`, are wanted: indices into it."""
        return range(max(start, self.num_dispensable) - start, end - start)

    def take(self, states: States) -> None:
        """Those of the next rows: [rows, hidden_size]."""
        if not self._num_taken:
            self._sum = np.zeros(states.shape[1], np.float64)
        for state in states:
            self._sum += state
        self._num_taken += len(states)

    def embedding(self) -> list[float]:
        """Of length 1. To be called once all states were taken."""
        # The mean's divisor does not change its direction.
        length = float(np.linalg.norm(self._sum))
        embedding: list[float] = (self._sum / length if length else self._sum).astype(np.float32).tolist()
        return embedding
