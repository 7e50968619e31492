"""The engine's loop with an executor that overlaps steps: a fake device that runs each as late as it can."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from services.engine.core import EngineCore, StepReport
from services.engine.executor.base import Executor, ExecutorInfo, WaitForResult
from services.engine.executor.errors import BrokenSequencesError
from services.engine.plan import SamplingParams, StepPlan, StepResult, StopParams
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import FinishReason, Sequence
from tests.engine.running_engine import scripted
from tests.engine.scheduler.harness import prompt
from tests.engine.scheduler.paged_executor import PagedExecutor, lone_run

INFO = ExecutorInfo(num_pages=64, page_size=4, vocab_size=97, max_model_len=128)


def _sequence(sequence_id: int, **stop: int) -> Sequence:
    return Sequence(sequence_id, prompt(6, sequence_id), SamplingParams(), StopParams(**stop), arrival_ns=0)


class Client:
    """Runs a core to the end of its sequences, in this thread. `on_report` acts between steps."""

    def __init__(self, executor: Executor, *sequences: Sequence, later: Iterable[Sequence] = ()) -> None:
        """Those of `later` are not added yet."""
        self.core = EngineCore(Scheduler(SchedulerConfig(32, 16), executor.info), executor)
        self.scheduler = self.core._scheduler
        self.reports: list[StepReport] = []
        self.on_report: Callable[[StepReport], None] = lambda _: None
        self._sequences = [*sequences, *later]
        self.tokens: dict[int, list[int]] = {sequence.sequence_id: [] for sequence in self._sequences}
        for sequence in sequences:
            self.core.add(sequence)

    def after(self, step: int, act: Callable[[], None]) -> None:
        self.on_report = lambda report: act() if report.number == step and report.outputs else None

    def run(self) -> None:
        self.core.run(self._report)
        self.scheduler.check_integrity()
        self.core.close()

    def _report(self, report: StepReport) -> None:
        self.reports.append(report)
        for output in report.outputs:
            self.tokens[output.sequence.sequence_id] += output.token_ids
        self.on_report(report)
        if all(sequence.finish_reason for sequence in self._sequences):
            self.core.stop()


def test_the_next_step_is_launched_before_a_result_is_read() -> None:
    executor = PagedExecutor(INFO)
    sequence = _sequence(1, max_tokens=3)
    client = Client(executor, sequence)
    client.run()
    assert executor.log == ["launch 1", "launch 2", "read 1", "launch 3", "read 2", "read 3"]
    assert client.tokens[1] == lone_run(sequence.prompt_ids, sequence.stop, INFO)
    assert [report.number for report in client.reports] == [1, 2, 3]


def test_a_request_that_comes_while_a_step_is_ahead_is_in_the_one_after_it() -> None:
    executor = PagedExecutor(INFO)
    early, late = _sequence(1, max_tokens=8), _sequence(2, max_tokens=5)
    client = Client(executor, early, later=[late])
    client.after(2, lambda: client.core.add(late))
    client.run()
    assert executor.log[4:8] == ["read 2", "read 3", "launch 4", "launch 5"]  # 3 was launched before it came
    for sequence in (early, late):
        assert client.tokens[sequence.sequence_id] == lone_run(sequence.prompt_ids, sequence.stop, INFO)


def test_an_abort_is_confirmed_before_the_step_ahead_is_over() -> None:
    executor = PagedExecutor(INFO)
    aborted, other = _sequence(1, max_tokens=50), _sequence(2, max_tokens=6)
    client = Client(executor, aborted, other)
    client.after(2, lambda: client.core.abort(1))
    client.run()
    [confirmed] = [report for report in client.reports if report.cancelled]
    assert (confirmed.number, confirmed.cancelled) == (2, [1])
    assert aborted.finish_reason is FinishReason.CANCELLED
    assert client.tokens[1] == lone_run(aborted.prompt_ids, aborted.stop, INFO)[:2]
    assert client.tokens[2] == lone_run(other.prompt_ids, other.stop, INFO)
    client.scheduler.check_idle()


class FailingExecutor(PagedExecutor):
    """Fails once: at the launch of a step, or when its result is read."""

    def __init__(self, at: str, step: int) -> None:
        super().__init__(INFO)
        self._at = at
        self._step = step

    def launch(self, plan: StepPlan) -> WaitForResult:
        if plan.number != self._step:
            return super().launch(plan)
        self._step = -1
        if self._at == "launch":
            raise RuntimeError("no memory")

        def fail() -> StepResult:
            raise BrokenSequencesError([1])

        return fail


@pytest.mark.parametrize("at", ["launch", "read"])
def test_a_failure_voids_the_step_ahead_too(at: str) -> None:
    executor = FailingExecutor(at, step=3)
    broken, later = _sequence(1, max_tokens=50), _sequence(2, max_tokens=5)
    client = Client(executor, broken, later=[later])
    client.on_report = lambda report: client.core.add(later) if report.failed else None
    client.run()
    [failure] = [report for report in client.reports if report.error]
    assert failure.failed == [broken]
    assert broken.finish_reason is FinishReason.ERROR
    assert client.tokens[2] == lone_run(later.prompt_ids, later.stop, INFO)
    client.scheduler.check_idle()


def test_other_executors_are_given_one_step_at_a_time() -> None:
    executor = scripted(3, 1, 4, info=INFO)
    sequence = _sequence(1, max_tokens=4)
    client = Client(executor, sequence)
    client.run()
    assert client.tokens[1] == [3, 1, 4, 3]
