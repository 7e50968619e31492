"""The engine's loop: mail, plan, execute, apply, report. One thread runs it and owns all of the model's state.

Other threads only leave notes in the mailbox, which is read between steps, and get one report per step.

An executor that overlaps steps is given the next one, where it can be planned, before a step's result is awaited.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from services.engine.executor.base import Executor, OverlappingExecutor, WaitForResult
from services.engine.executor.errors import BrokenSequencesError, ExecutorLost
from services.engine.grammar.masks import MaskThread
from services.engine.plan import StepPlan
from services.engine.scheduler.counters import Counters
from services.engine.scheduler.kv_cache import KvReadOut
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import Sequence
from services.engine.scheduler.step import SequenceOutput

MAX_FAILURES_IN_A_ROW = 3  # an executor that cannot run a step any more is not worth keeping


class EngineBroken(Exception):
    """Step after step failed."""


class EngineState(NamedTuple):  # of all classes the one that takes least to make, and one is made per step
    """What scheduler and KV pool hold between two steps."""

    requests: dict[str, int]  # size of every collection with an entry per sequence, by name
    kv: KvReadOut

    @property
    def num_running(self) -> int:
        return self.requests["scheduler_running"]

    @property
    def num_waiting(self) -> int:
        return self.requests["scheduler_waiting"]


@dataclass(slots=True)
class StepReport:
    """What a step made, or which aborts took effect before it, or what its failure ended."""

    number: int  # of the last step that was run
    state: EngineState
    num_tokens: int = 0  # computed by the step
    seconds: float = 0.0  # that the step took, planning included
    outputs: list[SequenceOutput] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)  # sequence ids
    failed: list[Sequence] = field(default_factory=list)
    error: Exception | None = None  # why the step failed


Report = Callable[[StepReport], None]


@dataclass(frozen=True, slots=True)
class _Abort:
    sequence_id: int


class _StartOver:
    """Restores the executor, with nothing left of what it ran."""


class _Stop:
    """Ends the loop."""


@dataclass(frozen=True, slots=True)
class _LaunchedStep:
    plan: StepPlan
    wait: WaitForResult


class EngineCore:
    """Drives a scheduler and an executor. `add`, `abort`, `start_over` and `stop` may be called from any thread."""

    def __init__(self, scheduler: Scheduler, executor: Executor, restore: Callable[[], None] = lambda: None) -> None:
        """`restore` prepares an executor that was lost for its next step."""
        self.info = executor.info
        self._scheduler = scheduler
        self._executor = executor
        self._overlapping = executor if isinstance(executor, OverlappingExecutor) else None
        self._ahead: _LaunchedStep | None = None  # the step after the one that was applied last
        self._restore_executor = restore
        self._masks = MaskThread(beside_step=not executor.info.fills_cores)
        self._mailbox: SimpleQueue[Sequence | _Abort | _StartOver | _Stop] = SimpleQueue()
        self._cancelled: list[int] = []
        self._step_number = 0
        self._failures = 0  # in a row

    @property
    def counters(self) -> Counters:
        """The scheduler's totals; single numbers may be read from any thread."""
        return self._scheduler.counters

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence, which the engine thread owns from now on."""
        self._mailbox.put(sequence)

    def abort(self, sequence_id: int) -> None:
        """Ends a sequence before the next step; a report confirms it. Nothing happens if it has ended by then."""
        self._mailbox.put(_Abort(sequence_id))

    def start_over(self) -> None:
        """Restores the executor before the next step, with an empty cache. Sequences that are still there fail."""
        self._mailbox.put(_StartOver())

    def stop(self) -> None:
        """Makes `run` return after the step in progress."""
        self._mailbox.put(_Stop())

    def run(self, report: Report) -> None:
        """Runs steps until `stop`, asleep when there are none. Raises EngineBroken when step after step fails."""
        idle = True
        while self._take_mail(report, wait=idle):
            if self._cancelled:  # before the step, which may take long
                report(StepReport(number=self._step_number, state=self.state(), cancelled=self._cancelled))
                self._cancelled = []
            idle = not self._step(report)

    def close(self) -> None:
        """Frees what the executor holds."""
        self._masks.close()
        self._executor.close()

    def state(self) -> EngineState:
        """To be called by the engine thread, or before it runs."""
        return EngineState(self._scheduler.read_out_requests(), self._scheduler.read_out_kv())

    def _take_mail(self, report: Report, *, wait: bool) -> bool:
        """Takes up all notes; sleeps until there is one if `wait`. False when one of them is `stop`."""
        if not wait and self._mailbox.empty():  # in nearly every step, and an exception takes longer
            return True
        try:
            note = self._mailbox.get(block=wait)
            while True:
                if isinstance(note, _Stop):
                    return False
                if isinstance(note, Sequence):
                    self._scheduler.add(note)
                elif isinstance(note, _StartOver):
                    self._restore(report)
                elif self._scheduler.abort(note.sequence_id):
                    self._cancelled.append(note.sequence_id)
                note = self._mailbox.get_nowait()
        except Empty:
            return True

    def _restore(self, report: Report) -> None:
        self._ahead = None
        failed = self._scheduler.reset()
        report(StepReport(number=self._step_number, state=self.state(), failed=failed))
        self._restore_executor()

    def _step(self, report: Report) -> bool:
        """Runs one step and reports it. False when there was nothing to run."""
        started = time.perf_counter()
        try:
            step = self._ahead or self._launch(self._scheduler.plan())
            if step is None:
                return False
            self._step_number = step.plan.number
            self._ahead = self._launch(self._scheduler.plan_ahead()) if self._overlapping is not None else None
            outputs = self._scheduler.apply(step.plan, step.wait())
        except Exception as error:  # it ends the sequences that run, and not the engine
            self._fail_all(error, report)
            return True
        self._failures = 0
        report(
            StepReport(
                number=step.plan.number,
                state=self.state(),
                num_tokens=step.plan.num_tokens,
                seconds=time.perf_counter() - started,
                outputs=outputs,
            )
        )
        return True

    def _launch(self, plan: StepPlan | None) -> _LaunchedStep | None:
        """Without overlap the step runs when its result is awaited."""
        if plan is None:
            return None
        self._masks.start(plan)
        if self._overlapping is None:
            return _LaunchedStep(plan, partial(self._executor.execute, plan))
        return _LaunchedStep(plan, self._overlapping.launch(plan))

    def _fail_all(self, error: Exception, report: Report) -> None:
        """Starts over with nothing; gives up when that does not help."""
        self._ahead = None
        failed = self._scheduler.reset()
        report(StepReport(number=self._step_number, state=self.state(), failed=failed, error=error))
        # A request's own fault says nothing of the next step, and a lost executor is restored before it.
        if not isinstance(error, (BrokenSequencesError, ExecutorLost)):
            self._failures += 1
        if self._failures >= MAX_FAILURES_IN_A_ROW:
            raise EngineBroken(f"{self._failures} steps in a row failed") from error
