"""Why a step fails, whichever executor runs it."""

from __future__ import annotations

from collections.abc import Sequence


class NonFiniteLogitsError(RuntimeError):
    """Rows of logits hold NaN or plus infinity, or allow no token at all: the model or its KV pool is broken."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"logits are not finite in rows {list(rows)}")
        self.rows = tuple(rows)
