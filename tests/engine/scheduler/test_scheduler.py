"""Batching, order, ends and refusals."""

from dataclasses import replace
from typing import Any

import pytest

from services.engine.executor.base import ExecutorInfo
from services.engine.plan import StepResult
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import FinishReason, Sequence
from services.engine.scheduler.step import StepOrderError
from tests.engine.scheduler.harness import Harness, entry_of, prompt


def test_nothing_to_do_gives_no_plan() -> None:
    engine = Harness()
    assert engine.plan() is None
    engine.assert_idle()


def test_one_sequence_runs_to_its_length_and_each_token_is_computed_once() -> None:
    engine = Harness()
    sequence = engine.add(prompt(10), max_tokens=6)
    plans = engine.run()
    engine.assert_complete(sequence)
    assert sequence.finish_reason is FinishReason.LENGTH
    assert [plan.number for plan in plans] == [1, 2, 3, 4, 5, 6]
    # The last token's keys and values are needed by nobody.
    assert engine.scheduler.counters.computed_tokens == 10 + 5
    engine.assert_idle()


def test_a_long_prompt_is_computed_in_chunks_and_samples_with_the_last() -> None:
    engine = Harness(max_batch_tokens=16)
    sequence = engine.add(prompt(40), max_tokens=1)
    plans = engine.run()
    entries = [plan.sequences[0] for plan in plans]
    assert [len(entry.token_ids) for entry in entries] == [16, 16, 8]
    assert [len(entry.sampling) for entry in entries] == [0, 0, 1]
    engine.assert_complete(sequence)


def test_the_end_of_a_prompt_may_exceed_the_budget_by_a_little() -> None:
    engine = Harness(max_batch_tokens=16, max_finishing_tokens=2)
    for length, chunks in ((18, [18]), (19, [16, 3]), (34, [16, 18])):
        sequence = engine.add(prompt(length, seed=length), max_tokens=1)
        assert [plan.num_tokens for plan in engine.run()] == chunks
        engine.assert_complete(sequence)


def test_only_one_prompt_of_a_step_exceeds_its_budget() -> None:
    engine = Harness(max_batch_tokens=16, max_finishing_tokens=4)
    sequences = [engine.add(prompt(length, seed=length), max_tokens=1) for length in (10, 9, 3)]
    assert [plan.num_tokens for plan in engine.run()] == [19, 3]
    for sequence in sequences:
        engine.assert_complete(sequence)


def test_a_guess_finds_no_budget_behind_an_exceeding_prompt() -> None:
    engine = Harness(max_batch_tokens=16, max_num_seqs=8, max_finishing_tokens=4, predictable=True)
    stream = engine.add([1, 2, 3, 4] * 3, max_tokens=30, max_guesses=3)
    while not stream.output_ids:
        engine.step()
    late = engine.add(prompt(19, seed=5), max_tokens=2)
    plan = engine.plan()
    assert plan is not None
    assert plan.num_tokens == 1 + 19
    engine.apply()
    engine.run()
    engine.assert_complete(stream)
    engine.assert_complete(late)


def test_a_long_prompt_never_stops_running_streams() -> None:
    engine = Harness(num_pages=256, max_batch_tokens=32)
    streams = [engine.add(prompt(6, seed=i), max_tokens=40) for i in range(8)]
    while any(not s.output_ids for s in streams):
        engine.step()
    long = engine.add(prompt(400, seed=50), max_tokens=4)
    chunks = 0
    while not long.output_ids:
        plan = engine.plan()
        assert plan is not None
        decodes = [entry_of(plan, s) for s in streams if s.finish_reason is None]
        assert all(entry is not None and len(entry.token_ids) == 1 for entry in decodes)
        assert len(decodes) == 8
        assert plan.num_tokens <= 32
        chunks += entry_of(plan, long) is not None
        engine.apply()
    assert chunks == -(-400 // 24)  # it gets all of the budget that the decodes leave
    engine.run()
    for sequence in [*streams, long]:
        engine.assert_complete(sequence)


def start_streams(engine: Harness, count: int) -> list[Sequence]:
    streams = [engine.add(prompt(6, seed=i), max_tokens=60) for i in range(count)]
    while any(not stream.output_ids for stream in streams):
        engine.step()
    return streams


@pytest.mark.parametrize(("num_streams", "num_prompts", "together"), [
    (1, 1, 8),  # a prompt by itself stops streams for a short chunk only
    (8, 2, 8),
    (1, 2, 31),  # a queue of them takes whole steps
    (8, 3, 24),
])  # fmt: skip
def test_prompts_that_are_few_are_cut_shorter_beside_streams(num_streams: int, num_prompts: int, together: int) -> None:
    engine = Harness(num_pages=256, max_batch_tokens=32, max_mixed_prompt_tokens=8)
    streams = start_streams(engine, num_streams)
    prompts = [engine.add(prompt(100, seed=50 + i), max_tokens=2) for i in range(num_prompts)]
    plan = engine.plan()
    assert plan is not None
    assert plan.num_tokens == num_streams + together
    engine.apply()
    engine.run()
    for sequence in streams + prompts:
        engine.assert_complete(sequence)


def test_a_prompt_that_is_cut_shorter_beside_streams_exceeds_nothing() -> None:
    engine = Harness(num_pages=256, max_batch_tokens=32, max_finishing_tokens=4, max_mixed_prompt_tokens=8)
    start_streams(engine, 1)
    engine.add(prompt(10, seed=50), max_tokens=2)
    plans = [engine.step(), engine.step()]
    assert [plan.num_tokens for plan in plans if plan is not None] == [1 + 8, 1 + 2]


def test_a_prompt_beside_no_stream_takes_whole_steps() -> None:
    engine = Harness(num_pages=256, max_batch_tokens=32, max_mixed_prompt_tokens=8)
    sequence = engine.add(prompt(100), max_tokens=2)
    assert [plan.num_tokens for plan in engine.run()][:4] == [32, 32, 32, 4]
    engine.assert_complete(sequence)


def test_decodes_come_before_the_chunks_of_higher_priorities() -> None:
    engine = Harness(max_batch_tokens=16)
    stream = engine.add(prompt(3, seed=2), max_tokens=30)
    engine.step()
    urgent = engine.add(prompt(60, seed=3), max_tokens=2, priority=9)
    plan = engine.plan()
    assert plan is not None
    assert [(e.sequence_id, len(e.token_ids)) for e in plan.sequences] == [
        (stream.sequence_id, 1),
        (urgent.sequence_id, 15),
    ]
    engine.apply()


def test_a_higher_priority_does_not_wait_for_a_long_prefill() -> None:
    engine = Harness(max_batch_tokens=16)
    long = engine.add(prompt(200, seed=1), max_tokens=2)
    engine.step()
    urgent = engine.add(prompt(20, seed=2), max_tokens=2, priority=1)
    engine.step()
    engine.step()
    assert len(urgent.output_ids) == 1
    assert long.num_computed == 16 + 12
    engine.run()
    engine.assert_complete(long)
    engine.assert_complete(urgent)


def test_no_more_than_max_num_seqs_run() -> None:
    engine = Harness(max_num_seqs=3)
    sequences = [engine.add(prompt(3, seed=i)) for i in range(10)]
    engine.step()
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (3, 7)
    assert all(len(plan.sequences) <= 3 for plan in engine.run())
    for sequence in sequences:
        engine.assert_complete(sequence)


def test_equal_priorities_run_in_order_of_arrival() -> None:
    engine = Harness(max_num_seqs=1)
    sequences = [engine.add(prompt(3, seed=i), max_tokens=2) for i in range(4)]
    plans = engine.run()
    order = list(dict.fromkeys(plan.sequences[0].sequence_id for plan in plans))
    assert order == [s.sequence_id for s in sequences]


def test_higher_priority_runs_first() -> None:
    engine = Harness(max_num_seqs=1)
    sequences = [engine.add(prompt(3, seed=i), max_tokens=2, priority=i % 3) for i in range(6)]
    plans = engine.run()
    order = list(dict.fromkeys(plan.sequences[0].sequence_id for plan in plans))
    assert order == [s.sequence_id for s in sorted(sequences, key=lambda s: -s.priority)]


def test_nobody_starves_under_a_stream_of_higher_priorities() -> None:
    engine = Harness(max_num_seqs=1, aging_s=10.0)
    low = engine.add(prompt(3), max_tokens=1)
    overtaken = 0
    while low.finish_reason is None:
        engine.add(prompt(3, seed=1), max_tokens=1, priority=3)
        engine.clock.advance(1.0)
        engine.step()
        overtaken += 1
    # Only those that arrived within the head start of three points, 30 s, went before it.
    assert 25 <= overtaken <= 32
    engine.run()
    engine.assert_complete(low)


def test_a_stop_id_ends_a_sequence_and_is_its_last_token() -> None:
    engine = Harness()
    free = engine.add(prompt(9), max_tokens=12)
    engine.run()
    stop_id = free.output_ids[5]
    sequence = engine.add(prompt(9), max_tokens=12, stop_ids=frozenset({stop_id, 1000}))
    engine.run()
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.stop_token_id == stop_id
    assert sequence.output_ids == free.output_ids[: free.output_ids.index(stop_id) + 1]


def test_fieldbug_09_min_tokens_forbids_stop_ids_until_enough_tokens_are_out() -> None:
    engine = Harness(vocab_size=3)
    stop_ids = frozenset({0, 1})
    sequence = engine.add([2, 2, 2], max_tokens=30, min_tokens=6, stop_ids=stop_ids)
    while sequence.finish_reason is None:
        plan = engine.plan()
        assert plan is not None
        (job,) = plan.sequences[0].sampling
        assert job.forbidden_ids == (stop_ids if len(sequence.output_ids) < 6 else frozenset())
        engine.apply()
    assert sequence.output_ids[:6] == [2] * 6
    engine.assert_complete(sequence)
    assert sequence.finish_reason is FinishReason.STOP


def test_a_stop_id_sampled_against_the_rule_does_not_end_the_sequence() -> None:
    engine = Harness()
    sequence = engine.add([5], max_tokens=3, min_tokens=2, stop_ids=frozenset({7}))
    for token_id in [7, 7, 7]:
        plan = engine.scheduler.plan()
        assert plan is not None
        engine.scheduler.apply(plan, StepResult(plan.number, {sequence.sequence_id: [token_id]}))
    assert sequence.output_ids == [7, 7, 7]
    assert sequence.finish_reason is FinishReason.STOP


def test_max_model_len_ends_a_sequence() -> None:
    engine = Harness(num_pages=8, page_size=4, max_model_len=20)
    sequence = engine.add(prompt(15), max_tokens=100)
    engine.run()
    assert len(sequence.output_ids) == 5
    assert sequence.finish_reason is FinishReason.LENGTH
    engine.assert_complete(sequence)


def test_a_sequence_may_fill_the_whole_pool() -> None:
    engine = Harness(num_pages=5, page_size=4)
    sequence = engine.add(prompt(9), max_tokens=100)
    engine.run()
    assert sequence.num_tokens == 20
    engine.assert_complete(sequence)
    engine.assert_idle()


def test_times_are_those_of_the_clock() -> None:
    engine = Harness(max_batch_tokens=16)
    sequence = engine.add(prompt(20), max_tokens=3)
    engine.clock.advance(1.0)
    engine.run()
    first_scheduled, first, last = sequence.first_scheduled_ns, sequence.first_token_ns, sequence.last_token_ns
    assert first_scheduled is not None
    assert first is not None
    assert last is not None
    assert first_scheduled - sequence.arrival_ns >= 1_000_000_000
    assert sequence.arrival_ns < first_scheduled < first < last


@pytest.mark.parametrize("length", [0, 20, 21])
def test_a_prompt_that_leaves_no_room_is_refused(length: int) -> None:
    engine = Harness(max_model_len=20)
    with pytest.raises(ValueError, match=f"the prompt has {length} tokens, not 1 to 19"):
        engine.add(prompt(length))
    assert not engine.scheduler.has_work


def test_fieldbug_24_an_id_in_use_is_refused_and_the_first_holder_is_not_harmed() -> None:
    engine = Harness()
    sequence = engine.add(prompt(5))
    with pytest.raises(ValueError, match="sequence id 1 is in use"):
        engine.scheduler.add(replace(sequence, prompt_ids=prompt(7)))
    engine.run()
    engine.assert_complete(sequence)


def test_plan_and_apply_go_in_turn() -> None:
    engine = Harness()
    sequence = engine.add(prompt(5))
    plan = engine.scheduler.plan()
    assert plan is not None
    with pytest.raises(StepOrderError, match="step 1 is in flight"):
        engine.scheduler.plan()
    for wrong in [StepResult(2, {sequence.sequence_id: [3]}), StepResult(1, {}), StepResult(1, {99: [3]})]:
        with pytest.raises(StepOrderError, match="does not fit step 1"):
            engine.scheduler.apply(plan, wrong)
    assert sequence.output_ids == []
    right = StepResult(1, {sequence.sequence_id: [3]})
    engine.scheduler.apply(plan, right)
    with pytest.raises(StepOrderError, match="step 1 is not in flight"):
        engine.scheduler.apply(plan, right)
    assert sequence.output_ids == [3]


def test_reset_hands_back_every_sequence_and_frees_every_page() -> None:
    engine = Harness(max_num_seqs=2)
    finished = engine.add(prompt(12, seed=9), max_tokens=1)
    engine.run()
    sequences = [engine.add(prompt(9, seed=i), max_tokens=20) for i in range(4)]
    engine.step()
    plan = engine.plan()
    assert plan is not None
    engine.scheduler.abort(sequences[0].sequence_id)

    assert engine.reset() == sequences[1:]
    assert [s.finish_reason for s in sequences] == [FinishReason.CANCELLED] + [FinishReason.ERROR] * 3
    engine.scheduler.check_integrity()
    engine.assert_idle()
    assert engine.scheduler.read_out_kv().free_pages == engine.info.num_pages
    with pytest.raises(StepOrderError, match="not in flight"):
        engine.scheduler.apply(plan, StepResult(plan.number, {}))

    again = engine.add(finished.prompt_ids, max_tokens=5)
    following = engine.plan()
    assert following is not None
    assert following.number == plan.number + 1
    assert again.cached_tokens == 0  # the pool's content was void
    engine.apply()
    engine.run()
    engine.assert_complete(again)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_seqs": 9, "max_batch_tokens": 8}, r"max_batch_tokens \(8\) must be at least max_num_seqs \(9\)"),
        ({"aging_s": 0.0}, "aging_s must be greater than 0"),
    ],
)
def test_settings_under_which_a_sequence_would_never_move_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**settings)


def test_a_pool_that_does_not_hold_the_longest_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_model_len \(33\) is more than the KV pool holds"):
        Scheduler(SchedulerConfig(), ExecutorInfo(num_pages=8, page_size=4, vocab_size=97, max_model_len=33))
