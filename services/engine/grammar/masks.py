"""The masks of a step, which depend on tokens that are there before its forward pass begins."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from services.engine.plan import OutputGrammar, SequencePlan, StepPlan, TokenWords

SequenceMasks = list[TokenWords]  # one per sampling job


class MaskThread:
    """One thread; it sleeps unless a step has sequences with a grammar. llguidance computes without Python's lock.

    Where a step leaves a core free, masks are computed beside it. Where the step's threads keep all cores busy, a
    thread beside them would make one of them late, and the others wait for it at every barrier: masks are then computed
    before the step, by this thread and the engine's.
    """

    def __init__(self, *, beside_step: bool) -> None:
        self._beside_step = beside_step
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def start(self, plan: StepPlan) -> None:
        """Gives each sampling job of a sequence with a grammar its mask, which is there when the step has its
        logits."""
        entries = [entry for entry in plan.sequences if entry.grammar is not None and entry.sampling]
        if not entries:
            return
        # All that the thread needs is taken here: the jobs change hands below.
        work = _Work([_Task.of(entry) for entry in entries])
        computed = self._pool.submit(work.run)
        if not self._beside_step:
            work.run()
            if not computed.cancel():  # otherwise all was done before the thread woke up
                computed.result()
        for index, entry in enumerate(entries):
            for place, job in enumerate(entry.sampling):
                job.restrict(_PendingMask(computed, work, index, place))

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


class _Work:
    """The tasks of a step. Threads that run it share them out."""

    def __init__(self, tasks: list[_Task]) -> None:
        self.masks: list[SequenceMasks] = [[]] * len(tasks)
        self._left = iter(list(enumerate(tasks)))  # a list's iterator gives each entry to one thread

    def run(self) -> None:
        """Returns when no task is left to take; another thread may still be at its last."""
        for index, task in self._left:
            self.masks[index] = task.grammar.masks(task.drafts, task.may_end)


@dataclass(frozen=True, slots=True)
class _PendingMask:
    """Implements `TokenMask`."""

    computed: Future[None]
    work: _Work
    index: int
    place: int

    def words(self) -> TokenWords:
        if not self.computed.cancelled():
            self.computed.result()
        return self.work.masks[self.index][self.place]
