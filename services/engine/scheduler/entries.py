"""A sequence's part of a step plan, made of its tokens, pages and wishes."""

from __future__ import annotations

from services.engine.plan import SamplingJob, ScoringJob, SequencePlan
from services.engine.scheduler.sequence import Sequence


def chunk_entry(sequence: Sequence, start: int, end: int, *, is_sampled: bool) -> SequencePlan:
    """Computes the tokens at positions `start` … `end - 1`, and samples the token after them."""
    return SequencePlan(
        sequence.sequence_id,
        sequence.token_slice(start, end),
        start,
        sequence.page_table,
        _sampling_jobs(sequence) if is_sampled else [],
        sequence.logprobs,
        None if sequence.prompt_logprobs is None else _scoring_job(sequence, start, end),
        sequence.grammar,
        range(0) if sequence.pooler is None else sequence.pooler.rows(start, end),
    )


def decode_entry(sequence: Sequence) -> SequencePlan:
    """Computes the last output token, all that is left, and samples the next one."""
    return SequencePlan(
        sequence.sequence_id,
        [sequence.output_ids[-1]],
        sequence.num_computed,
        sequence.page_table,
        sequence.jobs or _sampling_jobs(sequence),
        sequence.logprobs,
        grammar=sequence.grammar,
    )


def _sampling_jobs(sequence: Sequence) -> list[SamplingJob]:
    """That of the next token, alone; kept for all that follow if they are chosen in the same way."""
    if sequence.jobs:
        return sequence.jobs
    forbidden_ids = sequence.forbidden_ids(len(sequence.output_ids))
    jobs = [SamplingJob(sequence.sampling, sequence.prompt_ids, sequence.output_ids, forbidden_ids)]
    if not forbidden_ids and sequence.grammar is None:
        sequence.jobs = jobs
    return jobs


def _scoring_job(sequence: Sequence, start: int, end: int) -> ScoringJob | None:
    """For the tokens at positions `start` … `end - 1`: each is followed by the prompt token that its logits score."""
    prompt_ids, num_top = sequence.prompt_ids, sequence.prompt_logprobs
    first, last = max(start, sequence.num_scored), min(end, len(prompt_ids) - 1)
    if num_top is None or first >= last:
        return None
    return ScoringJob(first - start, prompt_ids[first + 1 : last + 1], num_top)
