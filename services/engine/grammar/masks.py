"""The masks of a step, computed beside its forward pass: they depend on tokens that are there before it begins."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from services.engine.plan import OutputGrammar, SequencePlan, StepPlan, TokenWords

SequenceMasks = list[TokenWords]  # one per sampling job


class MaskThread:
    """One thread; it sleeps unless a step has sequences with a grammar. llguidance computes without Python's lock."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def start(self, plan: StepPlan) -> None:
        """Gives each sampling job of a sequence with a grammar its mask, which is computed while the step runs."""
        entries = [entry for entry in plan.sequences if entry.grammar is not None and entry.sampling]
        if not entries:
            return
        # All that the thread needs is taken here: the jobs change hands below.
        computed = self._pool.submit(_compute, [_Task.of(entry) for entry in entries])
        for index, entry in enumerate(entries):
            for place, job in enumerate(entry.sampling):
                job.restrict(_PendingMask(computed, index, place))

    def close(self) -> None:
        """Ends the thread after what it computes now."""
        self._pool.shutdown(wait=False)


@dataclass(frozen=True, slots=True)
class _Task:
    """One sequence's masks."""

    grammar: OutputGrammar
    drafts: list[int]  # guessed tokens, each with a job that samples the one after it
    may_end: list[bool]  # one per job

    @classmethod
    def of(cls, entry: SequencePlan) -> _Task:
        assert entry.grammar is not None
        drafts = entry.token_ids[len(entry.token_ids) - len(entry.sampling) + 1 :]
        return cls(entry.grammar, drafts, [not job.forbidden_ids for job in entry.sampling])


@dataclass(frozen=True, slots=True)
class _PendingMask:
    """Implements `TokenMask`."""

    computed: Future[list[SequenceMasks]]
    index: int
    place: int

    def words(self) -> TokenWords:
        return self.computed.result()[self.index][self.place]


def _compute(tasks: list[_Task]) -> list[SequenceMasks]:
    return [task.grammar.masks(task.drafts, task.may_end) for task in tasks]
