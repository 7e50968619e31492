"""Guesses in steps: fewer steps, the same output, and no trace of those that did not hold."""

import pytest

from services.engine.scheduler.sequence import FinishReason, Sequence
from tests.engine.scheduler.harness import Harness, entry_of

COUNTING = [*range(10), *range(10)]  # goes on with 0, 1, 2, … for a predictable executor of 10 ids


def harness(**sizes: int) -> Harness:
    return Harness(vocab_size=10, predictable=True, **sizes)


def test_guesses_save_steps_and_change_no_output() -> None:
    plain, guessing = harness(), harness()
    for engine, max_guesses in ((plain, 0), (guessing, 4)):
        sequences = [engine.add([*COUNTING, i], max_tokens=60, max_guesses=max_guesses) for i in range(3)]
        engine.run()
        for sequence in sequences:
            engine.assert_complete(sequence)
        engine.assert_idle()
    counters = guessing.scheduler.counters
    assert guessing.scheduler.counters.steps < 0.6 * plain.scheduler.counters.steps
    assert counters.spec_decode_draft_tokens > counters.spec_decode_accepted_tokens > 60
    assert counters.spec_decode_draft_tokens <= 4 * counters.spec_decode_drafts
    assert plain.scheduler.counters.spec_decode_drafts == 0


def test_a_sequence_that_did_not_ask_is_not_guessed() -> None:
    engine = harness()
    silent = engine.add(COUNTING, max_tokens=30)
    guessing = engine.add(COUNTING, max_tokens=30, max_guesses=3, cache_salt="its own")
    for plan in engine.run():
        entry = entry_of(plan, silent)
        assert entry is None or len(entry.sampling) <= 1
    engine.assert_complete(silent)
    engine.assert_complete(guessing)
    assert engine.scheduler.counters.spec_decode_drafts > 0


def test_a_step_with_guesses_has_a_job_for_each() -> None:
    engine = harness()
    sequence = engine.add(COUNTING, max_tokens=40, max_guesses=3)
    most = 0
    while sequence.finish_reason is None:
        before = list(sequence.output_ids)
        plan = engine.plan()
        assert plan is not None
        (entry,) = plan.sequences
        if before:
            assert entry.guesses == entry.token_ids[1:]
            assert [job.output_ids for job in entry.sampling] == [
                before + entry.guesses[:count] for count in range(len(entry.token_ids))
            ]
        most = max(most, len(entry.guesses))
        engine.apply()
    assert most == 3


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_ends_a_run_of_guesses_that_hold(max_tokens: int) -> None:
    engine = harness()
    sequence = engine.add(COUNTING, max_tokens=max_tokens, max_guesses=5)
    engine.run()
    engine.assert_complete(sequence)
    assert len(sequence.output_ids) == max_tokens
    engine.assert_idle()


@pytest.mark.parametrize("length", range(21, 30))
def test_max_model_len_ends_a_run_of_guesses_that_hold(length: int) -> None:
    engine = harness(num_pages=8, page_size=4, max_model_len=length)
    sequence = engine.add(COUNTING, max_tokens=100, max_guesses=5)
    engine.run()
    assert sequence.num_tokens == length
    engine.assert_complete(sequence)


@pytest.mark.parametrize("min_tokens", [0, 3, 11, 25])
def test_a_stop_id_in_the_middle_of_guesses_ends_the_sequence_as_without_them(min_tokens: int) -> None:
    engine = harness()
    for stop_id in range(10):
        stop_ids = frozenset({stop_id})
        sequence = engine.add(COUNTING, max_tokens=60, min_tokens=min_tokens, stop_ids=stop_ids, max_guesses=8)
        engine.run()
        engine.assert_complete(sequence)
        assert sequence.finish_reason is FinishReason.STOP
        assert sequence.stop_token_id == sequence.output_ids[-1] == stop_id
    assert engine.scheduler.counters.spec_decode_accepted_tokens > 10
    engine.assert_idle()


def test_guesses_leave_every_decode_its_place_in_the_budget() -> None:
    engine = harness(max_batch_tokens=6, max_num_seqs=6)
    sequences = [engine.add([*range(4), *range(4), i], max_tokens=30, max_guesses=8) for i in range(4)]
    for plan in engine.run():
        assert plan.num_tokens <= 6
    for sequence in sequences:
        engine.assert_complete(sequence)
    assert engine.scheduler.counters.spec_decode_accepted_tokens > 0


def test_nobody_is_preempted_for_guesses() -> None:
    runs = []
    for max_guesses in (0, 8):
        engine = harness(num_pages=24, page_size=2)
        sequences = [
            engine.add(COUNTING[:12], max_tokens=12, max_guesses=max_guesses, cache_salt=str(i)) for i in (1, 2)
        ]
        engine.run()
        for sequence in sequences:
            engine.assert_complete(sequence)
        runs.append(engine.scheduler.counters)
    assert [counters.preemptions for counters in runs] == [0, 0]
    assert runs[1].spec_decode_accepted_tokens > 0


def test_the_prefix_tree_holds_tokens_that_hold_and_no_others() -> None:
    """Its integrity check compares each page with the tokens of those that use it; here with those of the whole run."""
    engine = harness(page_size=2)
    sequence = engine.add(COUNTING, max_tokens=50, max_guesses=7)
    engine.run()
    counters = engine.scheduler.counters
    assert counters.spec_decode_draft_tokens > counters.spec_decode_accepted_tokens > 0
    computed = [*sequence.prompt_ids, *sequence.output_ids][:-1]
    assert engine.scheduler.read_out_kv().cached_pages == len(computed) // 2
    follower = engine.add([*computed, 5], max_tokens=4)
    engine.run()
    assert follower.cached_tokens == len(computed) // 2 * 2
    engine.assert_complete(follower)


def test_fieldbug_37_warm_and_cold_runs_with_guesses_agree() -> None:
    engine = harness(page_size=4)
    runs: list[Sequence] = []
    for max_guesses in (0, 6, 6, 0):
        runs.append(engine.add(COUNTING[:19], max_tokens=40, max_guesses=max_guesses))
        engine.run()
    assert runs[1].cached_tokens == runs[3].cached_tokens == 16
    for sequence in runs:
        engine.assert_complete(sequence)


def test_fieldbug_38_preemption_between_guesses_loses_and_doubles_nothing() -> None:
    engine = harness(num_pages=12, page_size=4)
    sequences = [engine.add([*COUNTING[:10], i], max_tokens=24, max_guesses=5) for i in range(3)]
    engine.run()
    assert engine.scheduler.counters.preemptions > 0
    assert engine.scheduler.counters.spec_decode_accepted_tokens > 0
    for sequence in sequences:
        engine.assert_complete(sequence)
    engine.assert_idle()


def test_fieldbug_21_pages_of_guesses_in_flight_are_freed_once_and_only_after_the_step() -> None:
    engine = harness(num_pages=64, page_size=2)
    sequences = [engine.add(COUNTING, max_tokens=30, max_guesses=6, cache_salt=str(i)) for i in range(2)]
    plan = engine.plan()
    while plan is None or min(len(entry.guesses) for entry in plan.sequences) < 2:
        engine.apply()
        plan = engine.plan()
    before, received = engine.scheduler.read_out_kv(), list(sequences[0].output_ids)
    assert engine.scheduler.abort(sequences[0].sequence_id)
    engine.scheduler.check_integrity()
    assert engine.scheduler.read_out_kv() == before
    outputs = engine.apply()
    assert [output.sequence for output in outputs] == [sequences[1]]
    assert sequences[0].output_ids == received == engine.expected(sequences[0])[: len(received)]
    engine.run()
    engine.assert_complete(sequences[1])
    engine.assert_idle()
