"""Cancellation in every phase of a sequence's life."""

import random

import pytest

from services.engine.scheduler.sequence import FinishReason
from tests.engine.scheduler.harness import Harness, prompt


def test_fieldbug_20_an_abort_in_any_phase_frees_the_sequence_by_the_next_step() -> None:
    engine = Harness(max_num_seqs=2, max_batch_tokens=8)
    decoding = engine.add(prompt(5, seed=1), max_tokens=50)
    engine.step()
    prefilling = engine.add(prompt(60, seed=2))
    engine.step()
    queued = engine.add(prompt(5, seed=3))
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (2, 1)
    for sequence in (queued, prefilling, decoding):
        assert engine.scheduler.abort(sequence.sequence_id)
        engine.scheduler.check_integrity()
        assert sequence.finish_reason is FinishReason.CANCELLED
        assert sequence.page_table == []
    engine.assert_idle()


def test_fieldbug_20_an_abort_between_prefill_and_first_token_frees_the_sequence() -> None:
    engine = Harness()
    sequence = engine.add(prompt(5))
    engine.plan()
    assert engine.scheduler.abort(sequence.sequence_id)
    assert engine.scheduler.num_running == 0
    assert engine.apply() == []
    assert sequence.output_ids == []
    engine.assert_idle()


def test_fieldbug_21_pages_of_a_step_in_flight_are_freed_once_and_only_after_it() -> None:
    engine = Harness(num_pages=32, page_size=4)
    sequences = [engine.add(prompt(9, seed=i), max_tokens=9) for i in range(3)]
    engine.step()
    engine.plan()
    before = engine.scheduler.read_out_kv()
    for sequence in sequences[:2]:
        assert engine.scheduler.abort(sequence.sequence_id)
        assert not engine.scheduler.abort(sequence.sequence_id)
        engine.scheduler.check_integrity()
    assert engine.scheduler.read_out_kv() == before
    outputs = engine.apply()
    assert [output.sequence for output in outputs] == [sequences[2]]
    after = engine.scheduler.read_out_kv()
    assert after.private_pages == before.private_pages - 2
    assert after.free_pages == before.free_pages + 2
    engine.run()
    engine.assert_complete(sequences[2])
    engine.assert_idle()


def test_fieldbug_21_an_abort_of_a_sequence_that_ends_in_the_same_step() -> None:
    engine = Harness()
    sequence = engine.add(prompt(5), max_tokens=1)
    engine.plan()
    engine.scheduler.abort(sequence.sequence_id)
    assert engine.apply() == []
    assert sequence.finish_reason is FinishReason.CANCELLED
    engine.assert_idle()


def test_fieldbug_23_late_duplicate_and_unknown_aborts_are_harmless() -> None:
    engine = Harness()
    sequence = engine.add(prompt(5), max_tokens=2)
    assert not engine.scheduler.abort(12345)
    engine.run()
    assert not engine.scheduler.abort(sequence.sequence_id)
    assert sequence.finish_reason is FinishReason.LENGTH
    aborted = engine.add(prompt(5), max_tokens=2)
    assert engine.scheduler.abort(aborted.sequence_id)
    assert not engine.scheduler.abort(aborted.sequence_id)
    engine.assert_idle()


def test_a_preempted_sequence_can_be_aborted() -> None:
    engine = Harness(num_pages=12, page_size=4)
    sequences = [engine.add(prompt(10, seed=i), max_tokens=24) for i in range(3)]
    while engine.scheduler.counters.preemptions == 0:
        engine.step()
    victim = next(s for s in sequences if s.preemptions)
    assert engine.scheduler.abort(victim.sequence_id)
    assert engine.received[victim.sequence_id] == victim.output_ids
    engine.run()
    for sequence in sequences:
        if sequence is not victim:
            engine.assert_complete(sequence)
    engine.assert_idle()


@pytest.mark.parametrize("seed", range(5))
def test_fieldbug_21_25_after_an_abort_storm_nothing_is_left_and_output_is_unchanged(seed: int) -> None:
    rng = random.Random(seed)
    engine = Harness(num_pages=24, page_size=4, max_batch_tokens=24, max_num_seqs=8)
    sequences = []
    for i in range(100):
        shared = prompt(rng.randrange(20), seed=rng.randrange(3))
        sequences.append(engine.add([*shared, *prompt(1 + rng.randrange(8), seed=i)], max_tokens=1 + rng.randrange(20)))
        if rng.random() < 0.5:
            engine.scheduler.abort(rng.choice(sequences).sequence_id)
        if rng.random() < 0.7:
            planned = engine.plan()
            for _ in range(rng.randrange(3)):
                engine.scheduler.abort(rng.choice(sequences).sequence_id)
            if planned is not None:
                engine.apply()
    engine.run()
    assert {s.finish_reason for s in sequences} == {FinishReason.CANCELLED, FinishReason.LENGTH}
    for sequence in sequences:
        output = engine.received[sequence.sequence_id]
        assert output == sequence.output_ids
        assert output == engine.expected(sequence)[: len(output)]
        if sequence.finish_reason is not FinishReason.CANCELLED:
            engine.assert_complete(sequence)
    engine.assert_idle()
    after = engine.add(sequences[0].prompt_ids, max_tokens=12)
    engine.run()
    engine.assert_complete(after)
