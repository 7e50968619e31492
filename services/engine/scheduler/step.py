"""A step's own state: filled while it is planned, kept while it is in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.engine.plan import SequencePlan, StepPlan, TokenLogprobs
from services.engine.scheduler.sequence import FinishReason, Sequence


class StepOrderError(RuntimeError):
    """plan and apply were not called in turn, or the result is not that of the plan."""


@dataclass(slots=True)
class SequenceOutput:
    """What a step made of one sequence: tokens, or prompt_logprobs, or the end of one that was only to be prefilled.

    `finish_reason` is set if this was the sequence's last output; with ERROR its grammar failed after these tokens.
    """

    sequence: Sequence
    token_ids: list[int]
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None  # of token_ids, if asked for
    prompt_logprobs: TokenLogprobs | None = None  # of the prompt's next tokens, if asked for


@dataclass(slots=True)
class Step:
    """A step plan and what the scheduler must remember until its result is there."""

    plan: StepPlan
    budget: int  # tokens that may still be added
    started_ns: int
    overdraft: int = 0  # tokens that the end of a prompt may take beyond it
    num_tokens: int = 0
    sequences: dict[int, Sequence] = field(default_factory=dict)  # by id, in the order of plan.sequences
    num_samples: dict[int, int] = field(default_factory=dict)  # by id, of the sequences that have any
    short_of_pages: bool = False
    given_up_pages: list[int] = field(default_factory=list)  # written by the step, to be freed after it
    leaving: list[Sequence] = field(
        default_factory=list
    )  # ended while in flight; they hold their pages until it is over

    def add(self, sequence: Sequence, entry: SequencePlan) -> None:
        """A sequence's part, with at most one sample."""
        num_tokens = len(entry.token_ids)
        self.plan.sequences.append(entry)
        self.sequences[entry.sequence_id] = sequence
        if entry.sampling:
            self.num_samples[entry.sequence_id] = 1
        self.budget = max(0, self.budget - num_tokens)
        self.num_tokens += num_tokens
