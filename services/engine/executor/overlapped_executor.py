"""The torch executor on a device that works beside the CPU: a step is launched while the one before it runs."""

from __future__ import annotations

from services.engine.executor.base import WaitForResult
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.plan import StepPlan, StepResult


class OverlappedExecutor:
    """Implements `OverlappingExecutor`. On a CPU it would be right, and hold every token back for a step."""

    def __init__(self, inner: TorchExecutor) -> None:
        self.info = inner.info
        self._inner = inner

    def execute(self, plan: StepPlan) -> StepResult:
        return self._inner.execute(plan)

    def launch(self, plan: StepPlan) -> WaitForResult:
        return self._inner.start(plan)

    def close(self) -> None:
        self._inner.close()
