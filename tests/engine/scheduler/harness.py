"""A scheduler with an executor beside it, driven step by step; the accounting is checked at every turn."""

from __future__ import annotations

from collections import deque
from itertools import count

import numpy as np
import numpy.typing as npt

from services.engine.executor.base import ExecutorInfo, WaitForResult
from services.engine.plan import SamplingParams, SequencePlan, StepPlan, StopParams
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.pooling import Pooler, Pooling
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import FinishReason, Sequence, SequenceState
from services.engine.scheduler.speculation import Speculation
from services.engine.scheduler.step import SequenceOutput
from tests.engine.scheduler.paged_executor import PagedExecutor, lone_run, lone_states


class Clock:
    """One millisecond passes whenever it is read."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


class Harness:
    """What the engine thread does, one call at a time. `overlapping`: with an executor that overlaps steps."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 4,
        max_model_len: int | None = None,
        vocab_size: int = 97,
        max_batch_tokens: int = 32,
        max_num_seqs: int = 16,
        max_finishing_tokens: int = 0,
        max_mixed_prompt_tokens: int | None = None,
        aging_s: float = 10.0,
        predictable: bool = False,
        overlapping: bool = False,
    ) -> None:
        self.info = ExecutorInfo(num_pages, page_size, vocab_size, max_model_len or num_pages * page_size)
        self.clock = Clock()
        config = SchedulerConfig(max_batch_tokens, max_num_seqs, max_finishing_tokens, max_mixed_prompt_tokens, aging_s)
        self.scheduler = Scheduler(config, self.info, self.clock)
        self.executor = PagedExecutor(self.info, predictable=predictable)
        self._predictable = predictable
        self.received: dict[int, list[int]] = {}  # tokens that apply returned, by sequence id
        self.scores: dict[int, list[float]] = {}  # log-probabilities of those tokens
        self.prompt_scores: dict[int, list[float]] = {}  # and of the prompts
        self._ids = count(1)
        self._sequences: dict[int, Sequence] = {}
        self._poolings: dict[int, Pooling] = {}  # of prompts to embed, by sequence id
        self.overlapping = overlapping
        self._in_flight: deque[tuple[StepPlan, WaitForResult]] = deque()

    def add(
        self,
        prompt_ids: list[int],
        *,
        max_tokens: int = 8,
        min_tokens: int = 0,
        stop_ids: frozenset[int] = frozenset(),
        cache_salt: str = "",
        priority: int = 0,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        max_guesses: int = 0,
        pooling: Pooling | None = None,
    ) -> Sequence:
        """With `pooling` the prompt is only to be embedded."""
        sequence = Sequence(
            sequence_id=next(self._ids),
            prompt_ids=list(prompt_ids),
            sampling=SamplingParams(temperature=0.0),
            stop=StopParams(max_tokens=0 if pooling else max_tokens, min_tokens=min_tokens, stop_token_ids=stop_ids),
            arrival_ns=self.clock(),
            cache_salt=cache_salt,
            priority=priority,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            speculation=Speculation(max_guesses) if max_guesses else None,
            pooler=Pooler(pooling, len(prompt_ids)) if pooling else None,
        )
        self.scheduler.add(sequence)
        self._sequences[sequence.sequence_id] = sequence
        if pooling:
            self._poolings[sequence.sequence_id] = pooling
        self.received[sequence.sequence_id] = []
        self.scores[sequence.sequence_id] = []
        self.prompt_scores[sequence.sequence_id] = []
        return sequence

    def plan(self) -> StepPlan | None:
        """Starts a step. There must be one whenever there is work."""
        plan = self._launched(self.scheduler.plan())
        if self.scheduler.has_work:
            assert plan is not None
            assert plan.sequences, "there is work, and yet the step is empty"
        for entry in plan.sequences if plan is not None else []:
            assert self._sequences[entry.sequence_id].state is SequenceState.RUNNING, "preempted within its own step"
        return plan

    def plan_ahead(self) -> StepPlan | None:
        """Starts the step after the one in flight, if it can be told."""
        plan = self._launched(self.scheduler.plan_ahead())
        assert plan is None or plan.sequences, "a step without sequences was planned ahead"
        return plan

    def _launched(self, plan: StepPlan | None) -> StepPlan | None:
        self.scheduler.check_integrity()
        if plan is not None:
            self._in_flight.append((plan, self.executor.launch(plan)))
        return plan

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def reset(self) -> list[Sequence]:
        """As after a step that failed. Returns the sequences that this ended."""
        self._in_flight.clear()
        return self.scheduler.reset()

    def apply(self) -> list[SequenceOutput]:
        """Runs the first one of the steps that are in flight."""
        plan, wait = self._in_flight.popleft()
        outputs = self.scheduler.apply(plan, wait())
        self.scheduler.check_integrity()
        for output in outputs:
            self.received[output.sequence.sequence_id] += output.token_ids
            if output.logprobs is not None:
                assert len(output.logprobs) == len(output.token_ids)
                self.scores[output.sequence.sequence_id] += output.logprobs.logprobs
            if output.prompt_logprobs is not None:
                assert not self.received[output.sequence.sequence_id], "a prompt's score after its output"
                self.prompt_scores[output.sequence.sequence_id] += output.prompt_logprobs.logprobs
            assert output.finish_reason is output.sequence.finish_reason
        return outputs

    def step(self) -> StepPlan | None:
        """Applies a step, and starts it before if it is not in flight."""
        if not self._in_flight and self.plan() is None:
            return None
        plan, _ = self._in_flight[0]
        if self.overlapping and len(self._in_flight) == 1:
            self.plan_ahead()
        self.apply()
        return plan

    def run(self, max_steps: int = 10_000) -> list[StepPlan]:
        """Steps until nothing is left to do."""
        plans: list[StepPlan] = []
        while self.scheduler.has_work or self._in_flight:
            plan = self.step()
            assert plan is not None
            plans.append(plan)
            assert len(plans) < max_steps, "no end in sight"
        return plans

    def expected(self, sequence: Sequence) -> list[int]:
        return lone_run(sequence.prompt_ids, sequence.stop, self.info, predictable=self._predictable)

    def assert_complete(self, sequence: Sequence) -> None:
        """The sequence ended by itself with exactly the tokens, or the embedding, of its lone run."""
        assert sequence.finish_reason in {FinishReason.STOP, FinishReason.LENGTH}
        assert sequence.output_ids == self.expected(sequence)
        assert self.received[sequence.sequence_id] == sequence.output_ids
        if sequence.pooler is not None:
            assert sequence.finish_reason is FinishReason.STOP
            expected = lone_embedding(sequence.prompt_ids, self._poolings[sequence.sequence_id])
            np.testing.assert_allclose(sequence.pooler.embedding(), expected, atol=1e-6)

    def assert_idle(self) -> None:
        assert not self.scheduler.has_work
        self.scheduler.check_idle()
        assert not any(self.scheduler.read_out_requests().values())
        kv = self.scheduler.read_out_kv()
        assert kv.free_pages + kv.cached_pages == kv.total_pages


def lone_embedding(prompt_ids: list[int], pooling: Pooling) -> npt.NDArray[np.float64]:
    states = lone_states(prompt_ids).astype(np.float64)
    pooled: npt.NDArray[np.float64] = states[-1] if pooling is Pooling.LAST else states.mean(0)
    return pooled / np.linalg.norm(pooled)


def entry_of(plan: StepPlan, sequence: Sequence) -> SequencePlan | None:
    """A sequence's part of a plan."""
    return next((entry for entry in plan.sequences if entry.sequence_id == sequence.sequence_id), None)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids that differ from the first one on between seeds."""
    return [(seed * 31 + position * 7) % 97 for position in range(length)]
