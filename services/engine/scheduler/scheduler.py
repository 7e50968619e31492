"""The batch policy: which tokens of which sequences the next step computes.

Order. Sequences are served by rank: arrival time minus `aging_s` per point of priority, lower first. A point of
priority is thus worth a fixed head start, not a place for ever: whoever waits is overtaken only by sequences that
arrive within that head start, so nobody starves, and the order of two sequences never changes, preempted or not.

Step. Decodes come first, so that no prompt stops a running stream. What is left of the token budget goes to prefill
chunks by rank, of sequences that run and of waiting ones, which are admitted as far as they fit. A prompt that comes by
itself takes only a part of it while streams decode, for a step lasts as long as its tokens; a queue of prompts takes
all, as it is over soonest that way. The end of a prompt may exceed the budget by a little: a step more, for a few
tokens, would cost more than they do.

Pages. They are taken as they are needed. When none is free and the prefix cache has none to evict, a sequence takes
them from the last in rank that runs, but only from one behind itself and not yet in the plan; otherwise it sits the
step out with what it holds. So the first in rank always moves on, and no two sequences rob each other in turn.

Ahead. While a step is in flight the next one may be planned, where its tokens do not decide what that is: the same
sequences decode on, nobody waits for a seat, and there are pages for all of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from services.engine.executor.base import ExecutorInfo
from services.engine.plan import SequencePlan, StepPlan, StepResult
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.counters import Counters
from services.engine.scheduler.entries import chunk_entry, decode_entry
from services.engine.scheduler.kv_cache import KvCache, KvReadOut
from services.engine.scheduler.lookahead import going_on, pending_decode
from services.engine.scheduler.queue import RankedQueue
from services.engine.scheduler.sequence import FinishReason, Sequence, SequenceState
from services.engine.scheduler.speculator import Speculator
from services.engine.scheduler.step import SequenceOutput, Step, StepOrderError

_DECODES_PER_PROMPT = 4  # with more prompts than one for so many streams that decode, they are a queue


class Scheduler:
    """Decides what the engine computes. Called by one thread: `plan` and `apply` in turn, the rest at any time.

    With `plan_ahead` between them two steps are in flight, and the first one is to be applied first.
    """

    def __init__(
        self, config: SchedulerConfig, info: ExecutorInfo, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`clock` returns nanoseconds. Raises ValueError if the pool is too small for `info.max_model_len` tokens."""
        if info.max_model_len > info.num_pages * info.page_size:
            raise ValueError(
                f"max_model_len ({info.max_model_len}) is more than the KV pool holds "
                f"({info.num_pages} pages of {info.page_size} tokens)"
            )
        self._config = config
        self._max_model_len = info.max_model_len
        self._page_size = info.page_size
        self._clock = clock
        self._aging_ns = int(config.aging_s * 1e9)
        self.counters = Counters()
        self._cache = KvCache(info.num_pages, info.page_size, self.counters)
        self._speculator = Speculator(self._cache, self.counters, info.max_model_len)
        self._live: dict[int, Sequence] = {}  # waiting and running, by id
        self._waiting = RankedQueue()
        self._running = RankedQueue()
        self._arrivals = 0
        self._steps = 0
        self._in_flight: deque[Step] = deque()  # at most one and the one planned ahead of its result
        self._applied_ns = 0  # when the last result came

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs. While it is true and no step is in flight, `plan` returns one."""
        return bool(self._live)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Puts a new sequence in line.

        Raises ValueError for an id in use, an empty prompt, and a prompt that leaves no room for a token in
        max_model_len.
        """
        length = len(sequence.prompt_ids)
        if sequence.sequence_id in self._live:
            raise ValueError(f"sequence id {sequence.sequence_id} is in use")
        longest = self._max_model_len if sequence.is_prefill_only else self._max_model_len - 1
        if not 1 <= length <= longest:
            raise ValueError(f"the prompt has {length} tokens, not 1 to {longest}")
        self._arrivals += 1
        sequence.rank = (sequence.arrival_ns - sequence.priority * self._aging_ns, self._arrivals)
        sequence.max_output = min(sequence.stop.max_tokens, self._max_model_len - length)
        self._live[sequence.sequence_id] = sequence
        self._waiting.add(sequence)

    def abort(self, sequence_id: int) -> bool:
        """Ends a sequence as CANCELLED; False if no such sequence waits or runs. It yields no further output.

        Its pages are free at once or, while it is in a step in flight, once that step's result is applied.
        """
        sequence = self._live.get(sequence_id)
        if sequence is None:
            return False
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
            self._release(sequence)
        self._end(sequence, FinishReason.CANCELLED)
        return True

    def plan(self) -> StepPlan | None:
        """The next step; None when there is nothing to do. Raises StepOrderError while a step is in flight."""
        if self._in_flight:
            raise StepOrderError(f"step {self._in_flight[0].plan.number} is in flight")
        if not self._live:
            return None
        step = self._new_step()
        decodes: list[Sequence] = []
        prefills: deque[Sequence] = deque()
        for sequence in self._running:
            (decodes if sequence.num_left == 1 else prefills).append(sequence)
        for sequence in decodes:
            (self._schedule_decode if sequence.output_ids else self._schedule)(step, sequence)
        held_back = self._held_back(step.budget, len(decodes), len(prefills) + len(self._waiting))
        step.budget -= held_back
        step.overdraft = 0 if held_back else self._config.max_finishing_tokens
        self._schedule_prefills(step, prefills)
        step.budget += held_back
        self._speculator.add_guesses(step, len(self._running))
        return self._take_off(step)

    def plan_ahead(self) -> StepPlan | None:
        """The step after the one in flight, before that one's tokens are known; None where it has to wait for them.

        Raises StepOrderError unless one step is in flight.
        """
        if len(self._in_flight) != 1:
            raise StepOrderError(f"{len(self._in_flight)} steps are in flight")
        sequences = going_on(self._in_flight[0], self._running, self._max_model_len)
        if not sequences or (self._waiting and len(sequences) < self._config.max_num_seqs):
            return None
        growing = [s for s in sequences if s.num_tokens == len(s.page_table) * self._page_size]
        if len(growing) > self._cache.num_available:
            return None
        for sequence in growing:
            self._cache.grow(sequence)
        step = self._new_step()
        for sequence in sequences:
            step.add(sequence, pending_decode(sequence))
        return self._take_off(step)

    def apply(self, plan: StepPlan, result: StepResult) -> list[SequenceOutput]:
        """Takes in the result of the step in flight; returns its tokens, without those of sequences aborted meanwhile.

        Raises StepOrderError, and changes nothing, if plan and result are not those of the step in flight.
        """
        step = self._in_flight[0] if self._in_flight else None
        if step is None or step.plan is not plan:
            raise StepOrderError(f"step {plan.number} is not in flight")
        num_samples = dict(zip(result.token_ids, map(len, result.token_ids.values()), strict=True))
        if result.number != plan.number or num_samples != step.num_samples:
            raise StepOrderError(f"result {result.number} does not fit step {plan.number}")
        self._in_flight.popleft()
        ahead = self._in_flight[0] if self._in_flight else None
        now = self._clock()
        self._speculator.note_step(step, (now - max(step.started_ns, self._applied_ns)) / 1e9)
        self._applied_ns = now
        some_ended = ahead is not None or bool(step.leaving)  # while the step ran
        outputs: list[SequenceOutput] = []
        for entry, sequence in zip(plan.sequences, step.sequences.values(), strict=True):
            if some_ended and sequence.state is not SequenceState.RUNNING:
                continue
            if not entry.sampling or entry.scoring is not None:
                outputs += self._prefill_output(entry, sequence, result, now)
            if entry.sampling:
                token_ids = result.token_ids[entry.sequence_id]
                if len(token_ids) > 1:
                    token_ids = self._speculator.held(sequence, entry, token_ids)
                outputs.append(self._append_tokens(sequence, token_ids, result, now))
                if ahead is not None and sequence.state is SequenceState.RUNNING:
                    ahead.given_up_pages += self._cache.commit(sequence, sequence.num_tokens)
        for sequence in step.leaving:
            self._cache.release(sequence)
        for page in step.given_up_pages:
            self._cache.free(page)
        return outputs

    def reset(self) -> list[Sequence]:
        """After a failed step: ends every sequence as ERROR and returns them. The cache is empty, every page free."""
        failed = list(self._live.values())
        leaving = [sequence for step in self._in_flight for sequence in step.leaving]
        for sequence in failed + leaving:
            sequence.path.clear()
            sequence.page_table.clear()
            sequence.num_computed = 0
        for sequence in failed:
            self._end(sequence, FinishReason.ERROR)
        self._waiting.clear()
        self._running.clear()
        self._cache.clear()
        self._in_flight.clear()
        return failed

    def read_out_kv(self) -> KvReadOut:
        """The KV pool's figures."""
        return self._cache.read_out()

    def read_out_requests(self) -> dict[str, int]:
        """Size of every collection that holds an entry per sequence, by name. All are 0 when idle."""
        return {
            "scheduler_live": len(self._live),
            "scheduler_waiting": len(self._waiting),
            "scheduler_running": len(self._running),
            "scheduler_in_flight": sum([len(step.sequences) for step in self._in_flight]),
        }

    def check_idle(self) -> None:
        """Raises AssertionError if anything is held though no sequence waits or runs. Costs next to nothing."""
        assert not any(self.read_out_requests().values()), f"sequences left behind: {self.read_out_requests()}"
        kv = self._cache.read_out()
        assert kv.cached_pages_in_use == 0, f"cached pages are in use by nobody: {kv}"
        assert kv.free_pages + kv.cached_pages == kv.total_pages, f"pages were lost: {kv}"

    def check_integrity(self) -> None:
        """Raises AssertionError when the accounting of sequences or pages is broken. Walks the whole pool."""
        waiting, running = list(self._waiting), list(self._running)
        assert {s.sequence_id for s in waiting + running} == set(self._live), "a sequence is in no queue"
        assert len(waiting) + len(running) == len(self._live), "a sequence is in two queues"
        assert all(s.state is SequenceState.WAITING and not s.path and not s.page_table for s in waiting)
        assert all(s.state is SequenceState.RUNNING and s.path for s in running)
        assert len(running) <= self._config.max_num_seqs
        leaving = [sequence for step in self._in_flight for sequence in step.leaving]
        given_up = [page for step in self._in_flight for page in step.given_up_pages]
        self._cache.check_integrity(running + leaving, given_up)
        if not self._live and not self._in_flight:
            self.check_idle()

    def _held_back(self, budget: int, num_decodes: int, num_prompts: int) -> int:
        """Tokens of the budget that prompts leave alone, for the sake of streams that decode."""
        limit = self._config.max_mixed_prompt_tokens
        if limit is None or num_decodes == 0 or num_prompts > max(1, num_decodes // _DECODES_PER_PROMPT):
            return 0
        return max(0, budget - limit)

    def _new_step(self) -> Step:
        return Step(StepPlan(self._steps + 1, []), self._config.max_batch_tokens, self._clock())

    def _take_off(self, step: Step) -> StepPlan:
        self._steps += 1
        self.counters.steps += 1
        self.counters.computed_tokens += step.num_tokens
        self._in_flight.append(step)
        return step.plan

    def _schedule_prefills(self, step: Step, prefills: deque[Sequence]) -> None:
        """Spends the rest of the budget by rank on running prefills and on waiting sequences that can be admitted."""
        while step.budget > 0:
            if prefills and not (self._waiting and self._waiting.first.rank < prefills[0].rank):
                sequence = prefills.popleft()
            elif self._can_admit(step):
                sequence = self._admit()
            elif prefills:
                sequence = prefills.popleft()
            else:
                break
            self._schedule(step, sequence)

    def _schedule(self, step: Step, sequence: Sequence) -> None:
        """Adds a sequence's next tokens to the step, as many as budget and pages allow."""
        if sequence.state is not SequenceState.RUNNING:
            return  # preempted a moment ago for one before it
        first_prefill = not (sequence.output_ids or sequence.preemptions)
        left = sequence.num_left
        if left > 1:
            gained = self._cache.take_shared(sequence)
            left -= gained
            if first_prefill:
                sequence.cached_tokens += gained
                self.counters.prefix_hit_tokens += gained
        start = sequence.num_computed
        length = left if left <= step.budget + step.overdraft else step.budget
        end = self._secure_pages(step, sequence, start + length)
        if end == start:
            return
        if first_prefill:
            self.counters.prefix_miss_tokens += end - start
        if sequence.first_scheduled_ns is None:
            sequence.first_scheduled_ns = step.started_ns
        is_sampled = end - start == left and not sequence.is_prefill_only
        step.add(sequence, chunk_entry(sequence, start, end, is_sampled=is_sampled))
        # After the plan has its page table: the step writes the pages that commit gives up.
        step.given_up_pages += self._cache.commit(sequence, end)

    def _schedule_decode(self, step: Step, sequence: Sequence) -> None:
        """`_schedule` for a sequence whose last output token is all that is left to compute.

        It runs once for each token of every output, mostly after a sleep in which its data left the caches: it touches
        as few objects as it can.
        """
        if step.short_of_pages and sequence.state is not SequenceState.RUNNING:
            return  # preempted a moment ago for one before it
        start = sequence.num_computed
        end = start + 1
        if len(sequence.page_table) * self._page_size < end and self._secure_pages(step, sequence, end) < end:
            return
        step.add(sequence, decode_entry(sequence))
        if end % self._page_size:
            sequence.num_computed = end
        else:
            step.given_up_pages += self._cache.commit(sequence, end)

    def _secure_pages(self, step: Step, sequence: Sequence, end: int) -> int:
        """Gives a sequence pages for its tokens up to `end`; returns how far they reach, at most `end`."""
        while len(sequence.page_table) * self._page_size < end:
            if self._cache.grow(sequence):
                continue
            step.short_of_pages = True
            if not self._preempt_behind(step, sequence):
                return len(sequence.page_table) * self._page_size
        return end

    def _preempt_behind(self, step: Step, sequence: Sequence) -> bool:
        """Preempts the last running sequence, unless it is in the step; False if there is none behind `sequence`."""
        for victim in reversed(self._running):
            if victim is sequence:
                return False
            if victim.sequence_id not in step.sequences:
                self._running.remove(victim)
                self._cache.release(victim)
                victim.state = SequenceState.WAITING
                victim.preemptions += 1
                self._waiting.add(victim)
                self.counters.preemptions += 1
                return True
        raise AssertionError("a sequence that does not run asked for pages")

    def _can_admit(self, step: Step) -> bool:
        """Whether the first sequence in line may run. Nobody goes before it: a long prompt would wait for ever."""
        return (
            len(self._waiting) > 0
            and len(self._running) < self._config.max_num_seqs
            and not step.short_of_pages
            and self._fits(self._waiting.first)
        )

    def _admit(self) -> Sequence:
        sequence = self._waiting.first
        self._waiting.remove(sequence)
        self._running.add(sequence)
        sequence.state = SequenceState.RUNNING
        self._cache.open(sequence)
        return sequence

    def _fits(self, sequence: Sequence) -> bool:
        """Whether the pool holds all tokens of a waiting sequence, those that running prefills still lack, and one page
        more for each running sequence: otherwise its admission would soon cost a preemption."""
        needed = self._cache.pages_for(sequence.num_tokens)
        for other in self._running:
            needed += 1 + self._cache.pages_for(other.num_tokens) - len(other.page_table)
        available = self._cache.num_available
        return needed <= available or needed - self._cache.count_shared_in_use(sequence) <= available

    def _prefill_output(
        self, entry: SequencePlan, sequence: Sequence, result: StepResult, now: int
    ) -> list[SequenceOutput]:
        """Scores of prompt tokens, and the end of one that was only to be prefilled, if it is either. Pools states."""
        if sequence.pooler is not None and entry.state_rows:
            sequence.pooler.take(result.states[entry.sequence_id])
        is_over = sequence.is_prefill_only and sequence.num_left == 0
        if not is_over and entry.scoring is None:
            return []
        output = SequenceOutput(sequence, [], None, prompt_logprobs=result.prompt_logprobs.get(entry.sequence_id))
        if output.prompt_logprobs is not None and entry.scoring is not None:
            sequence.num_scored = entry.start + entry.scoring.rows.stop
        if is_over:
            sequence.first_token_ns = sequence.last_token_ns = now
            output.finish_reason = FinishReason.LENGTH if sequence.pooler is None else FinishReason.STOP
            self._finish(sequence, output.finish_reason)
        return [output]

    def _append_tokens(self, sequence: Sequence, token_ids: list[int], result: StepResult, now: int) -> SequenceOutput:
        """Adds new tokens up to the one that ends the sequence, if any of them does."""
        if sequence.first_token_ns is None:
            sequence.first_token_ns = now
        sequence.last_token_ns = now
        reason = None
        for count, token_id in enumerate(token_ids):
            reason = self._append_token(sequence, token_id)
            if reason is not None:
                token_ids = token_ids[: count if reason is FinishReason.ERROR else count + 1]
                break
        output = SequenceOutput(sequence, token_ids, reason)
        if len(token_ids) > 1:  # guesses that held: they were computed by the step that is over
            for page in self._cache.commit(sequence, sequence.num_tokens - 1):
                self._cache.free(page)
        if reason is not None:
            self._finish(sequence, reason)
        if sequence.logprobs is not None:
            scores = result.logprobs[sequence.sequence_id]
            output.logprobs = scores.part(0, len(token_ids), scores.num_top)
        return output

    def _append_token(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Returns why the token ends the sequence, if it does."""
        stop, grammar, output_ids = sequence.stop, sequence.grammar, sequence.output_ids
        is_complete = ends_form = False
        if grammar is not None:
            is_complete = grammar.accept(token_id)
            if grammar.failure:
                return FinishReason.ERROR
            ends_form = token_id in grammar.ending_ids
        output_ids.append(token_id)
        if ends_form or (token_id in stop.stop_token_ids and len(output_ids) > stop.min_tokens):
            sequence.stop_token_id = token_id
            return FinishReason.STOP
        if is_complete:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(output_ids) >= sequence.max_output else None

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Ends a running sequence by itself."""
        self._running.remove(sequence)
        self._release(sequence)
        self._end(sequence, reason)

    def _release(self, sequence: Sequence) -> None:
        """Takes its pages back, once the last step in flight that writes them is over."""
        for step in reversed(self._in_flight):
            if sequence.sequence_id in step.sequences:
                step.leaving.append(sequence)
                return
        self._cache.release(sequence)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.state = SequenceState.FINISHED
        sequence.finish_reason = reason
        del self._live[sequence.sequence_id]
