"""The interface of whatever runs step plans: the torch reference, the scripted executor, and a native one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from services.engine.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What the scheduler must know of its executor, fixed once weights and KV pool are in memory."""

    num_pages: int  # pages in the KV pool
    page_size: int  # tokens per page
    vocab_size: int  # ids from 0 to vocab_size - 1 are valid
    max_model_len: int  # longest sequence, tokens: the model's limit or what the pool holds, whichever is lower
    fills_cores: bool = False  # a step's threads keep all cores of this machine busy


class Executor(Protocol):
    """Owns weights and KV pool. Called by the engine thread only, one step at a time."""

    info: ExecutorInfo

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step. Whatever it raises fails every request of the engine; the KV pool's content is then void.

        BrokenSequencesError names the requests at fault: the others may be sent again.
        """
        ...

    def close(self) -> None:
        """Frees what the executor holds. Not to be used afterwards."""
        ...


WaitForResult = Callable[[], StepResult]  # raises as `Executor.execute`


@runtime_checkable
class OverlappingExecutor(Executor, Protocol):
    """Takes the next step while a step runs. Steps run in the order in which they were launched."""

    def launch(self, plan: StepPlan) -> WaitForResult:
        """Starts a step as soon as those before it are over, and does not wait for it. The plan is read by then.

        A PENDING_TOKEN stands for what the step launched before samples of that sequence. When a step fails, those
        launched after it are void.
        """
        ...
