"""A step's own state: filled while it is planned, kept while it is in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.engine.plan import StepPlan
from services.engine.scheduler.sequence import FinishReason, Sequence


class StepOrderError(RuntimeError):
    """plan and apply were not called in turn, or the result is not that of the plan."""


@dataclass(slots=True)
class SequenceOutput:
    """What a step made of one sequence: at least one token. `finish_reason` is set if the last of them ended it."""

    sequence: Sequence
    token_ids: list[int]
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Step:
    """A step plan and what the scheduler must remember until its result is there."""

    plan: StepPlan
    budget: int  # tokens that may still be added
    started_ns: int
    sequences: dict[int, Sequence] = field(default_factory=dict)  # by id, in the order of plan.sequences
    short_of_pages: bool = False
    given_up_pages: list[int] = field(default_factory=list)  # written by the step, to be freed after it
    aborted: list[Sequence] = field(default_factory=list)  # while in flight; they hold their pages until it is over
