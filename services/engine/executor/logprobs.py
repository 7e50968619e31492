"""Which rows of a step's logits have log-probabilities, whichever way an executor computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from services.engine.executor.errors import BrokenSequencesError
from services.engine.plan import ScoringJob, SequencePlan, TokenLogprobs

# (rows of the step's sampled logits, the token of each, number of alternatives) -> the tokens' log-probabilities
ScoreRows = Callable[[list[int], list[int], int], TokenLogprobs]

ROWS_AT_ONCE = 128  # of prompt logits: 128 rows of 150,000 float32 are 77 MB


def score_sampled(
    sequences: Sequence[SequencePlan], sampled_ids: Sequence[int], token_ids: Mapping[int, list[int]], score: ScoreRows
) -> dict[int, TokenLogprobs]:
    """Log-probabilities of the sampled tokens of the sequences that ask for them.

    `sampled_ids`: the sequence id of each row; `token_ids`: what was sampled. All rows are scored in one call.
    """
    wanted = {
        plan.sequence_id: plan.num_logprobs for plan in sequences if plan.sampling and plan.num_logprobs is not None
    }
    if not wanted:
        return {}
    rows = [row for row, sequence_id in enumerate(sampled_ids) if sequence_id in wanted]
    order = list(dict.fromkeys(sampled_ids[row] for row in rows))
    scores = score(rows, [token for sequence_id in order for token in token_ids[sequence_id]], max(wanted.values()))
    parts: dict[int, TokenLogprobs] = {}
    start = 0
    for sequence_id in order:
        stop = start + len(token_ids[sequence_id])
        parts[sequence_id] = scores.part(start, stop, wanted[sequence_id])
        start = stop
    return parts


def scoring_slices(job: ScoringJob) -> Iterator[tuple[int, list[int]]]:
    """A job cut so that few rows of logits are in memory at once: (rows before the slice, its next_ids)."""
    for start in range(0, len(job.next_ids), ROWS_AT_ONCE):
        yield start, job.next_ids[start : start + ROWS_AT_ONCE]


def require_finite(sequence_id: int, scores: TokenLogprobs) -> None:
    """Raises BrokenSequencesError where a row of logits was not finite."""
    if any(map(math.isnan, scores.logprobs)):
        raise BrokenSequencesError([sequence_id])
