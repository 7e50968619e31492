"""Speculation within steps: guesses ride beside decodes, and the step's own samples tell which of them hold.

A decode that computes its last token and guesses of those that follow has logits, and samples, at every one of
them. A sample counts as long as all guesses before it were sampled themselves, so the output is what it would be
without guesses, token for token. Keys and values of guesses lie in pages of the sequence's own, behind its computed
tokens; where they did not hold they are overwritten. The prefix tree gets a page when tokens that hold fill it.
"""

from __future__ import annotations

from services.engine.plan import SamplingJob, SequencePlan
from services.engine.scheduler.counters import Counters
from services.engine.scheduler.kv_cache import KvCache
from services.engine.scheduler.sequence import Sequence
from services.engine.scheduler.step import Step
from services.engine.scheduler.step_cost import StepCost


class Speculator:
    """Adds guesses to steps, and takes in what became of them."""

    def __init__(self, cache: KvCache, counters: Counters, max_model_len: int) -> None:
        self._cache = cache
        self._counters = counters
        self._max_model_len = max_model_len
        self._cost = StepCost()

    def add_guesses(self, step: Step, num_running: int) -> None:
        """Spends what the step's budget has left. No page is taken that a running sequence may want in the next step.

        To be called when all else of the step is planned.
        """
        price: float | None = None
        for entry, sequence in zip(step.plan.sequences, step.sequences.values(), strict=True):
            if sequence.speculation is None or not (entry.is_decode and entry.sampling):
                continue
            if sequence.grammar is not None:  # what it allows after a guess would have to be computed ahead
                continue
            if price is None:
                price = self._cost.share_of_rows(step.num_tokens)
            limit = min(step.budget, self._most_guesses(sequence))
            guesses = sequence.speculation.guess(sequence.prompt_ids, sequence.output_ids, limit, price)
            guesses = _before_stop(sequence, guesses)
            del guesses[self._secure_pages(sequence, len(guesses), num_running) :]
            if guesses:
                step.budget -= len(guesses)
                step.num_tokens += len(guesses)
                step.num_samples[entry.sequence_id] += len(guesses)
                _extend(entry, sequence, guesses)

    def held(self, sequence: Sequence, entry: SequencePlan, sampled: list[int]) -> list[int]:
        """The samples that count: those up to the first one that is not as guessed. sampled: one per job."""
        assert sequence.speculation is not None, "nobody else has more than one job"
        guesses = entry.guesses
        held = 0
        while held < len(guesses) and sampled[held] == guesses[held]:
            held += 1
        sequence.speculation.note(len(guesses), held)
        self._counters.spec_decode_drafts += 1
        self._counters.spec_decode_draft_tokens += len(guesses)
        self._counters.spec_decode_accepted_tokens += held
        return sampled[: held + 1]

    def note_step(self, step: Step, seconds: float) -> None:
        """A step was run. Learns from those without prompts, the ones whose rows guesses add to."""
        if step.num_tokens and step.num_tokens == sum(step.num_samples.values()):
            self._cost.note(step.num_tokens, seconds)

    def _most_guesses(self, sequence: Sequence) -> int:
        """How many tokens may follow, less the one that is sampled anyway."""
        left = min(sequence.stop.max_tokens - len(sequence.output_ids), self._max_model_len - sequence.num_tokens)
        return max(left - 1, 0)

    def _secure_pages(self, sequence: Sequence, num_guesses: int, num_running: int) -> int:
        """Gives a sequence pages for its guesses; returns for how many they reach."""
        page_size = self._cache.page_size
        end = sequence.num_tokens + num_guesses
        while len(sequence.page_table) * page_size < end and self._cache.num_available > num_running:
            self._cache.grow(sequence)
        return min(num_guesses, len(sequence.page_table) * page_size - sequence.num_tokens)


def _before_stop(sequence: Sequence, guesses: list[int]) -> list[int]:
    """Without a stop id and what follows: if it is sampled, nothing does."""
    stops = (place for place, token_id in enumerate(guesses) if token_id in sequence.stop.stop_token_ids)
    return guesses[: next(stops, len(guesses))]


def _extend(entry: SequencePlan, sequence: Sequence, guesses: list[int]) -> None:
    entry.token_ids += guesses
    entry.page_table += sequence.page_table[len(entry.page_table) :]  # none unless it is another list by now
    jobs = entry.sampling.copy()
    for count in range(1, len(guesses) + 1):
        output_ids = sequence.output_ids + guesses[:count]
        forbidden = sequence.forbidden_ids(len(output_ids))
        jobs.append(SamplingJob(sequence.sampling, sequence.prompt_ids, output_ids, forbidden))
    entry.sampling = jobs
