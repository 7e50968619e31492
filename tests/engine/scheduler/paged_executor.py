"""An executor whose next token depends on every token before it, as read back through the pages.

A slot of a page holds a digest of the whole prefix that ends there, made from the digest in the slot before it: like
real keys and values, it depends on all that came before. A page wrongly shared or reused, a token lost or doubled
changes what follows; a slot that is read before it is written, or written twice in one step, fails at once.

A predictable one mostly counts up from the last token, so that what it makes is often found in the text before.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import replace
from functools import partial

import numpy as np

from services.engine.executor.base import ExecutorInfo, WaitForResult
from services.engine.plan import (
    PENDING_TOKEN,
    SamplingJob,
    SequencePlan,
    States,
    StepPlan,
    StepResult,
    StopParams,
    TokenLogprobs,
)

HIDDEN_SIZE = 8


def extend_digest(digest: int, token_id: int) -> int:
    return zlib.crc32(token_id.to_bytes(4, "little"), digest)


def choose_token(
    digest: int, last_id: int, vocab_size: int, forbidden_ids: frozenset[int], *, predictable: bool
) -> int:
    """The token that follows a prefix. Never one of `forbidden_ids`."""
    if predictable and digest // vocab_size % 8 and (following := (last_id + 1) % vocab_size) not in forbidden_ids:
        return following
    while (token_id := digest % vocab_size) in forbidden_ids:
        digest = extend_digest(digest, token_id)
    return token_id


def lone_run(prompt_ids: list[int], stop: StopParams, info: ExecutorInfo, *, predictable: bool = False) -> list[int]:
    """The output of a request on its own, computed without pages, batches or a scheduler."""
    digest = 0
    for token_id in prompt_ids:
        digest = extend_digest(digest, token_id)
    output: list[int] = []
    while len(output) < stop.max_tokens and len(prompt_ids) + len(output) < info.max_model_len:
        may_stop = len(output) >= stop.min_tokens
        forbidden_ids = frozenset() if may_stop else stop.stop_token_ids
        last_id = output[-1] if output else prompt_ids[-1]
        token_id = choose_token(digest, last_id, info.vocab_size, forbidden_ids, predictable=predictable)
        output.append(token_id)
        if may_stop and token_id in stop.stop_token_ids:
            break
        digest = extend_digest(digest, token_id)
    return output


def score(digest: int, token_id: int) -> float:
    """A stand-in for the log-probability of a token after a prefix."""
    return -float(extend_digest(digest, token_id) % 1000)


def prompt_scores(prompt_ids: list[int]) -> list[float]:
    """Of all tokens of a prompt from the second on."""
    digest, scores = 0, []
    for token_id, next_id in itertools.pairwise(prompt_ids):
        digest = extend_digest(digest, token_id)
        scores.append(score(digest, next_id))
    return scores


def state(digest: int) -> States:
    """A stand-in for the last state of the token that a prefix ends with: [HIDDEN_SIZE]."""
    return np.random.default_rng(digest).standard_normal(HIDDEN_SIZE, np.float32)


def lone_states(prompt_ids: list[int]) -> States:
    """Of all tokens of a prompt."""
    digest, states = 0, []
    for token_id in prompt_ids:
        digest = extend_digest(digest, token_id)
        states.append(state(digest))
    return np.stack(states)


def _scores(digests: list[int], token_ids: list[int], num_top: int) -> TokenLogprobs:
    logprobs = [score(digest, token_id) for digest, token_id in zip(digests, token_ids, strict=True)]
    top = range(num_top)
    return TokenLogprobs(
        num_top, logprobs, [1] * len(token_ids), [i for _ in token_ids for i in top], [0.0] * num_top * len(token_ids)
    )


def _as_of_now(entry: SequencePlan) -> SequencePlan:
    """What the scheduler does later does not show in it."""
    jobs = [replace(job, output_ids=list(job.output_ids)) for job in entry.sampling]
    return replace(entry, token_ids=list(entry.token_ids), page_table=list(entry.page_table), sampling=jobs)


class PagedExecutor:
    """Implements `OverlappingExecutor` over a dict of slots. A step runs as late as it can: when its result is awaited.

    `log` holds what happened to which step, in order.
    """

    def __init__(self, info: ExecutorInfo, *, predictable: bool = False) -> None:
        self.info = info
        self.log: list[str] = []
        self._predictable = predictable
        self._slots: dict[tuple[int, int], int] = {}
        self._sampled: dict[int, list[int]] = {}  # by the last step

    def execute(self, plan: StepPlan) -> StepResult:
        return self.launch(plan)()

    def launch(self, plan: StepPlan) -> WaitForResult:
        self.log.append(f"launch {plan.number}")
        return partial(self._run, StepPlan(plan.number, [_as_of_now(entry) for entry in plan.sequences]))

    def _run(self, plan: StepPlan) -> StepResult:
        self.log.append(f"read {plan.number}")
        self._fill_in(plan)
        written: set[tuple[int, int]] = set()
        # In the plan's order: a sequence that shares pages with an earlier one of the same step must come after it.
        digests = [self._write(sequence, written) for sequence in plan.sequences]
        sampled: dict[int, list[int]] = {}
        for sequence, rows in zip(plan.sequences, digests, strict=True):
            jobs = sequence.sampling
            if jobs:
                end = sequence.start + len(sequence.token_ids)
                for length, job in enumerate(jobs, start=end - len(jobs) + 1):
                    self._check_history(sequence, length, job)
                sampled[sequence.sequence_id] = [
                    self._sample(digest, job) for digest, job in zip(rows[-len(jobs) :], jobs, strict=True)
                ]
        self._sampled = sampled
        return StepResult(
            plan.number,
            sampled,
            {
                entry.sequence_id: _scores(rows[-len(entry.sampling) :], sampled[entry.sequence_id], entry.num_logprobs)
                for entry, rows in zip(plan.sequences, digests, strict=True)
                if entry.sampling and entry.num_logprobs is not None
            },
            {
                entry.sequence_id: _scores(
                    [rows[row] for row in entry.scoring.rows], entry.scoring.next_ids, entry.scoring.num_top
                )
                for entry, rows in zip(plan.sequences, digests, strict=True)
                if entry.scoring is not None
            },
            {
                entry.sequence_id: np.stack([state(rows[row]) for row in entry.state_rows])
                for entry, rows in zip(plan.sequences, digests, strict=True)
                if entry.state_rows
            },
        )

    def close(self) -> None:
        self._slots.clear()

    def _fill_in(self, plan: StepPlan) -> None:
        """Puts what the step before sampled in the place of pending tokens."""
        for entry in plan.sequences:
            assert (PENDING_TOKEN in entry.token_ids) == any(job.num_pending for job in entry.sampling)
            if PENDING_TOKEN in entry.token_ids:
                entry.token_ids = list(self._sampled[entry.sequence_id])
                for job in entry.sampling:
                    job.output_ids = [*job.output_ids, *entry.token_ids]
                    job.num_pending = 0

    def _sample(self, digest: int, job: SamplingJob) -> int:
        last_id = job.output_ids[-1] if job.output_ids else job.prompt_ids[-1]
        vocab_size = self.info.vocab_size
        return choose_token(digest, last_id, vocab_size, job.forbidden_ids, predictable=self._predictable)

    def _write(self, plan: SequencePlan, written: set[tuple[int, int]]) -> list[int]:
        assert plan.token_ids, "a sequence without tokens is in the plan"
        assert all(0 <= page < self.info.num_pages for page in plan.page_table)
        digest = self._slots[self._slot(plan, plan.start - 1)] if plan.start else 0
        digests: list[int] = []
        for position, token_id in enumerate(plan.token_ids, start=plan.start):
            slot = self._slot(plan, position)
            assert slot not in written, "two sequences write one slot in the same step"
            written.add(slot)
            digest = self._slots[slot] = extend_digest(digest, token_id)
            digests.append(digest)
        return digests

    def _check_history(self, plan: SequencePlan, length: int, job: SamplingJob) -> None:
        """The first `length` slots must hold the digests of the job's own history, not only the one before the last."""
        history = [*job.prompt_ids, *job.output_ids]
        assert len(history) == length, "the job's last token is not that of its row"
        digest = 0
        for position, token_id in enumerate(history):
            digest = extend_digest(digest, token_id)
            assert self._slots[self._slot(plan, position)] == digest, f"position {position} was overwritten"

    def _slot(self, plan: SequencePlan, position: int) -> tuple[int, int]:
        page_size = self.info.page_size
        return plan.page_table[position // page_size], position % page_size
