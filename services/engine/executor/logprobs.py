"""Which rows of a step's logits have log-probabilities, whichever way an executor computes them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.engine.executor.errors import BrokenSequencesError
from services.engine.plan import ScoringJob, SequencePlan, TokenLogprobs

# (rows of the step's sampled logits, the token of each, number of alternatives) -> the tokens' log-probabilities
ScoreRows = Callable[[list[int], list[int], int], TokenLogprobs]

ROWS_AT_ONCE = 128  # of prompt logits: 128 rows of 150,000 float32 are 77 MB


@dataclass(frozen=True, slots=True)
class SampledScoring:
    """The sampled tokens of a step whose log-probabilities are asked for: all of them are scored in one call."""

    rows: list[int]  # of the step's sampled logits
    num_top: int  # the most alternatives that any of them has
    parts: list[tuple[int, int, int]]  # of each sequence: its id, its number of rows, its number of alternatives

    @classmethod
    def of(cls, sequences: Sequence[SequencePlan], sampled_ids: Sequence[int]) -> SampledScoring | None:
        """`sampled_ids`: the sequence id of each row; the rows of a sequence lie together. None if nothing is asked."""
        wanted = {
            plan.sequence_id: plan.num_logprobs for plan in sequences if plan.sampling and plan.num_logprobs is not None
        }
        if not wanted:
            return None
        rows = [row for row, sequence_id in enumerate(sampled_ids) if sequence_id in wanted]
        counts = Counter(sampled_ids[row] for row in rows)
        return cls(rows, max(wanted.values()), [(i, count, wanted[i]) for i, count in counts.items()])

    def deal_out(self, scores: TokenLogprobs) -> dict[int, TokenLogprobs]:
        """By sequence. scores: of `rows`."""
        dealt: dict[int, TokenLogprobs] = {}
        start = 0
        for sequence_id, count, num_top in self.parts:
            dealt[sequence_id] = scores.part(start, start + count, num_top)
            start += count
        return dealt


def score_sampled(
    sequences: Sequence[SequencePlan], sampled_ids: Sequence[int], token_ids: Mapping[int, list[int]], score: ScoreRows
) -> dict[int, TokenLogprobs]:
    """Log-probabilities of the sampled tokens of the sequences that ask for them. `token_ids`: what was sampled."""
    scoring = SampledScoring.of(sequences, sampled_ids)
    if scoring is None:
        return {}
    tokens = [token_id for sequence_id, _, _ in scoring.parts for token_id in token_ids[sequence_id]]
    return scoring.deal_out(score(scoring.rows, tokens, scoring.num_top))


def scoring_slices(job: ScoringJob) -> Iterator[tuple[int, list[int]]]:
    """A job cut so that few rows of logits are in memory at once: (rows before the slice, its next_ids)."""
    for start in range(0, len(job.next_ids), ROWS_AT_ONCE):
        yield start, job.next_ids[start : start + ROWS_AT_ONCE]


def require_finite(sequence_id: int, scores: TokenLogprobs) -> None:
    """Raises BrokenSequencesError where a row of logits was not finite."""
    if any(map(math.isnan, scores.logprobs)):
        raise BrokenSequencesError([sequence_id])
