"""Why a step fails, whichever executor runs it."""

from __future__ import annotations

from collections.abc import Sequence


class NonFiniteLogitsError(RuntimeError):
    """Rows of logits hold NaN or plus infinity, or allow no token at all: the model or its KV pool is broken."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"logits are not finite in rows {list(rows)}")
        self.rows = tuple(rows)

    def of_sequences(self, sampled_ids: Sequence[int]) -> BrokenSequencesError:
        """The same, naming the sequences. sampled_ids: the sequence id of each row of logits."""
        return BrokenSequencesError([sampled_ids[row] for row in self.rows])


class BrokenSequencesError(RuntimeError):
    """The model gives these sequences no finite logits or states: sending them again would not help."""

    def __init__(self, sequence_ids: Sequence[int]) -> None:
        super().__init__(f"no finite logits or states for the sequences {list(sequence_ids)}")
        self.sequence_ids = frozenset(sequence_ids)


class ExecutorLost(RuntimeError):
    """The executor runs no step until it has been restored. It says nothing against the engine itself."""
