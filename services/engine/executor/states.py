"""States of the last layer, by sequence, whichever way an executor computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.engine.executor.errors import BrokenSequencesError
from services.engine.plan import States


def states_by_sequence(states: States, counts: Sequence[tuple[int, int]]) -> dict[int, States]:
    """Deals out rows of states. counts: sequence id and number of rows of each sequence, in the order of the rows.

    Raises BrokenSequencesError for rows that are not finite.
    """
    parts: dict[int, States] = {}
    first = 0
    for sequence_id, count in counts:
        parts[sequence_id] = states[first : first + count]
        first += count
    broken = [sequence_id for sequence_id, part in parts.items() if not np.isfinite(part).all()]
    if broken:
        raise BrokenSequencesError(broken)
    return parts
