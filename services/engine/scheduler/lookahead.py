"""What is known of a step before the tokens of the one in flight are.

Its decodes are: wherever a sequence goes on, the next step computes the token that is being sampled, at a position that
is known. Whether the sequence goes on is known as far as its length ends it; a stop id is found out one step late, and
what was sampled after it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.engine.plan import PENDING_TOKEN, SamplingJob, SequencePlan
from services.engine.scheduler.sequence import Sequence
from services.engine.scheduler.step import Step


def going_on(step: Step, running: Iterable[Sequence], max_model_len: int) -> list[Sequence]:
    """The running sequences that the step after `step` decodes, without those that end by their length.

    None at all where that step has to wait: for a prompt that is not through, for a sequence that sat `step` out, or
    for one whose next step depends on the token itself, by its grammar, its guesses or its penalties.
    """
    sequences = []
    for sequence in running:
        if step.num_samples.get(sequence.sequence_id) != 1 or _depends_on_tokens(sequence):
            return []
        num_output = len(sequence.output_ids) + 1
        if num_output < sequence.stop.max_tokens and sequence.num_tokens + 1 < max_model_len:
            sequences.append(sequence)
    return sequences


def pending_decode(sequence: Sequence) -> SequencePlan:
    """Of the token that the step in flight samples. Its place in the pages must be secured."""
    forbidden_ids = sequence.forbidden_ids(len(sequence.output_ids) + 1)
    job = SamplingJob(sequence.sampling, sequence.prompt_ids, sequence.output_ids, forbidden_ids, num_pending=1)
    return SequencePlan(
        sequence.sequence_id,
        [PENDING_TOKEN],
        sequence.num_tokens,
        sequence.page_table.copy(),
        [job],
        sequence.logprobs,
    )


def _depends_on_tokens(sequence: Sequence) -> bool:
    return sequence.grammar is not None or sequence.speculation is not None or sequence.sampling.has_penalties
