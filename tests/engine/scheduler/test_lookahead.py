"""Steps that are planned before the tokens of the one in flight are known."""

from __future__ import annotations

import pytest

from services.engine.plan import PENDING_TOKEN, SamplingParams
from services.engine.scheduler.sequence import FinishReason, Sequence
from services.engine.scheduler.step import StepOrderError
from tests.engine.scheduler.harness import Harness, entry_of, prompt


def _decoding(*, num_pages: int = 64, max_num_seqs: int = 16, **fields: int) -> tuple[Harness, list[Sequence]]:
    """Two sequences whose prompts are through, with the step that samples their second tokens in flight."""
    engine = Harness(num_pages=num_pages, max_num_seqs=max_num_seqs, overlapping=True)
    sequences = [engine.add(prompt(6, seed), **({"max_tokens": 20} | fields)) for seed in range(2)]  # type: ignore[arg-type]
    engine.plan()
    engine.apply()
    engine.plan()
    return engine, sequences


def _pages_in_use(engine: Harness) -> int:
    kv = engine.scheduler.read_out_kv()
    return kv.private_pages + kv.cached_pages_in_use


def test_the_next_step_is_launched_before_the_result_of_a_step_is_read() -> None:
    engine = Harness(overlapping=True)
    sequences = [engine.add(prompt(6, seed), max_tokens=4) for seed in range(2)]
    engine.run()
    for sequence in sequences:
        engine.assert_complete(sequence)
    assert engine.executor.log == [
        "launch 1",
        "launch 2",
        "read 1",
        "launch 3",
        "read 2",
        "launch 4",
        "read 3",
        "read 4",  # both sequences are known to end with it
    ]


def test_a_pending_token_stands_at_the_place_of_the_sampled_one() -> None:
    engine, (sequence, _) = _decoding(min_tokens=3, stop_ids=frozenset({5}))  # type: ignore[arg-type]
    ahead = engine.plan_ahead()
    assert ahead is not None
    entry = entry_of(ahead, sequence)
    assert entry is not None
    assert (entry.token_ids, entry.start) == ([PENDING_TOKEN], 7)
    [job] = entry.sampling
    assert job.place == 2
    assert job.forbidden_ids == {5}
    engine.apply()
    following = engine.plan_ahead()
    assert following is not None
    [entry] = [e for e in following.sequences if e.sequence_id == sequence.sequence_id]
    assert entry.sampling[0].forbidden_ids == frozenset()
    engine.run()
    engine.assert_complete(sequence)


def test_what_is_sampled_after_a_stop_id_is_dropped_and_its_pages_are_held_until_then() -> None:
    lone = Harness()
    output = lone.expected(lone.add(prompt(6), max_tokens=20))
    place = next(i for i in range(3, 20) if output[i] not in output[:i])
    engine = Harness(overlapping=True)
    sequence = engine.add(prompt(6), max_tokens=20, stop_ids=frozenset({output[place]}))
    while sequence.finish_reason is None:
        engine.step()
    assert sequence.finish_reason is FinishReason.STOP
    assert engine.num_in_flight == 1  # one step too many
    assert _pages_in_use(engine) > 0
    assert engine.apply() == []
    engine.assert_idle()
    assert engine.received[sequence.sequence_id] == output[: place + 1]
    engine.assert_complete(sequence)


def test_no_token_is_computed_for_a_sequence_that_ends_by_its_length() -> None:
    computed = []
    for overlapping in (False, True):
        engine = Harness(num_pages=8, max_model_len=20, overlapping=overlapping)
        for seed, max_tokens in enumerate((1, 2, 7, 30)):
            engine.add(prompt(4, seed), max_tokens=max_tokens)
        engine.run()
        computed.append(engine.scheduler.counters.computed_tokens)
    assert computed[0] == computed[1]


def test_log_probabilities_are_those_of_sequential_steps() -> None:
    scores = []
    for overlapping in (False, True):
        engine = Harness(overlapping=overlapping)
        sequence = engine.add(prompt(9), max_tokens=12, logprobs=2, prompt_logprobs=1)
        engine.run()
        engine.assert_complete(sequence)
        scores.append((engine.scores[1], engine.prompt_scores[1]))
    assert scores[0] == scores[1]
    assert len(scores[0][0]) == 12


def test_a_page_that_a_pending_token_fills_is_shared_once_the_token_is_known() -> None:
    engine = Harness(page_size=4, overlapping=True)
    first = engine.add(prompt(6), max_tokens=14)
    engine.run()
    again = engine.add(first.prompt_ids + first.output_ids, max_tokens=1)
    engine.run()
    assert again.cached_tokens == 16  # all 19 that were computed, in whole pages


def test_equal_sequences_give_up_the_pages_that_both_fill() -> None:
    engine = Harness(page_size=2, overlapping=True)
    for _ in range(3):
        engine.add(prompt(5), max_tokens=16)
    engine.run()
    kv = engine.scheduler.read_out_kv()
    assert kv.cached_pages == (5 + 15) // 2
    engine.assert_idle()


@pytest.mark.parametrize("with_ahead", [False, True])
def test_an_abort_frees_the_pages_when_the_last_step_that_writes_them_is_over(with_ahead: bool) -> None:
    engine, (sequence, other) = _decoding()
    if with_ahead:
        engine.plan_ahead()
    assert engine.scheduler.abort(sequence.sequence_id)
    engine.scheduler.check_integrity()
    for _ in range(1 + with_ahead):
        assert _pages_in_use(engine) == 4
        assert all(output.sequence is other for output in engine.apply())
    assert _pages_in_use(engine) == 2
    engine.run()
    engine.assert_complete(other)
    engine.assert_idle()


def test_a_failure_ends_everything_in_both_steps() -> None:
    engine, sequences = _decoding()
    engine.plan_ahead()
    engine.scheduler.abort(sequences[0].sequence_id)
    assert engine.reset() == sequences[1:]
    engine.scheduler.check_integrity()
    engine.assert_idle()


def test_a_sequence_that_waits_for_a_free_seat_comes_first() -> None:
    engine, _ = _decoding()
    engine.add(prompt(3, 9))
    assert engine.plan_ahead() is None
    engine.apply()
    plan = engine.plan()
    assert plan is not None
    assert len(plan.sequences) == 3


def test_while_every_seat_is_taken_who_waits_does_not_matter() -> None:
    engine, sequences = _decoding(max_num_seqs=2)
    engine.add(prompt(3, 9))
    assert engine.plan_ahead() is not None
    engine.run()
    for sequence in sequences:
        engine.assert_complete(sequence)


def test_a_seat_that_will_be_free_is_given_away_first() -> None:
    engine, _ = _decoding(max_num_seqs=2, max_tokens=2)
    engine.add(prompt(3, 9))
    assert engine.plan_ahead() is None


def test_a_prompt_that_is_not_through_is_waited_for() -> None:
    engine = Harness(max_batch_tokens=8, max_num_seqs=4, overlapping=True)
    engine.add(prompt(4, 1), max_tokens=9)
    engine.plan()
    engine.apply()
    engine.add(prompt(20, 2))
    engine.plan()
    assert engine.plan_ahead() is None


def test_without_pages_for_all_nobody_gets_one() -> None:
    engine, _ = _decoding(num_pages=5, max_tokens=8)  # of four tokens: two for each, and one for whoever comes first
    while engine.plan_ahead() is not None:
        engine.apply()
        free = engine.scheduler.read_out_kv().free_pages
    assert engine.scheduler.read_out_kv().free_pages == free == 1
    engine.run()
    engine.assert_idle()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=0.5),
        SamplingParams(frequency_penalty=0.5),
    ],
)
def test_penalties_need_the_token(params: SamplingParams) -> None:
    engine, (sequence, _) = _decoding()
    sequence.sampling = params
    assert engine.plan_ahead() is None


def test_guesses_need_the_token() -> None:
    engine, _ = _decoding(max_guesses=2)
    assert engine.plan_ahead() is None


def test_steps_are_planned_and_applied_in_order() -> None:
    engine = Harness(overlapping=True)
    engine.add(prompt(3))
    with pytest.raises(StepOrderError, match="0 steps are in flight"):
        engine.plan_ahead()
    first, second = engine.plan(), engine.plan_ahead()
    with pytest.raises(StepOrderError, match="2 steps are in flight"):
        engine.plan_ahead()
    with pytest.raises(StepOrderError, match="step 1 is in flight"):
        engine.plan()
    assert first is not None
    assert second is not None
    with pytest.raises(StepOrderError, match="step 2 is not in flight"):
        engine.scheduler.apply(second, engine.executor.execute(first))
