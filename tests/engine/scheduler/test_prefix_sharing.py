"""What sequences share, and that sharing never changes what they say."""

import pytest

from services.engine.scheduler.sequence import Sequence
from tests.engine.scheduler.harness import Harness, entry_of, prompt


def test_requests_that_arrive_together_compute_a_common_prefix_once() -> None:
    engine = Harness(num_pages=400, page_size=16, max_batch_tokens=256)
    prefix = prompt(1000)
    first = engine.add([*prefix, *prompt(40, seed=1)])
    second = engine.add([*prefix, *prompt(40, seed=2)])
    engine.run()
    engine.assert_complete(first)
    engine.assert_complete(second)
    shared = 1000 // 16 * 16
    assert (first.cached_tokens, second.cached_tokens) == (0, shared)
    counters = engine.scheduler.counters
    assert counters.prefix_hit_tokens == shared
    assert counters.prefix_miss_tokens == 2 * 1040 - shared
    assert counters.computed_tokens == 2 * 1040 - shared + 2 * 7


def test_a_prefix_is_shared_within_one_step_and_its_owner_comes_first_in_the_plan() -> None:
    engine = Harness(max_batch_tokens=100)
    prefix = prompt(21)
    first, second = engine.add([*prefix, 1, 1, 1]), engine.add([*prefix, 2, 2, 2])
    plan = engine.plan()
    assert plan is not None
    assert [entry.sequence_id for entry in plan.sequences] == [first.sequence_id, second.sequence_id]
    one, two = plan.sequences
    assert (one.start, two.start) == (0, 20)
    assert two.page_table[:5] == one.page_table[:5]
    assert two.page_table[5] not in one.page_table
    engine.apply()
    engine.run()
    engine.assert_complete(first)
    engine.assert_complete(second)


def test_a_prefill_goes_on_with_pages_that_another_has_computed_meanwhile() -> None:
    engine = Harness(max_batch_tokens=22)
    prefix = prompt(80)
    slow = engine.add([*prefix, 1], max_tokens=3)
    engine.step()
    assert (slow.num_computed, len(slow.page_table)) == (22, 6)
    fast = engine.add([*prefix, 2], max_tokens=3, priority=50)  # overtakes, with the five full pages that are there
    engine.step()
    assert (slow.num_computed, fast.num_computed) == (22, 20 + 22)
    engine.step()
    engine.step()
    assert slow.num_computed == 81  # its half-full page and what it lacked were taken over
    assert slow.page_table[:20] == fast.page_table[:20]
    engine.run()
    engine.assert_complete(slow)
    engine.assert_complete(fast)
    # Computed twice: the two tokens of the page that was half full, and nothing else.
    assert engine.scheduler.counters.prefix_miss_tokens == 80 + 2 + 2
    assert engine.scheduler.counters.prefix_hit_tokens == 80 - 2
    engine.assert_idle()


def test_equal_sequences_end_up_on_the_same_pages_while_they_decode() -> None:
    engine = Harness(num_pages=64)
    twins = [engine.add(prompt(10), max_tokens=30) for _ in range(4)]
    while len(twins[0].output_ids) < 20:
        engine.step()
    kv = engine.scheduler.read_out_kv()
    assert kv.cached_pages_in_use == (10 + 19) // 4
    assert kv.private_pages <= 4
    engine.run()
    for twin in twins:
        engine.assert_complete(twin)
    engine.assert_idle()


def test_a_page_given_up_for_its_twin_is_not_reused_in_the_step_that_writes_it() -> None:
    engine = Harness(num_pages=64)
    twins = [engine.add(prompt(10), max_tokens=20) for _ in range(2)]
    newcomers: list[Sequence] = []
    while any(twin.finish_reason is None for twin in twins):
        newcomers.append(engine.add(prompt(8, seed=len(newcomers) + 1), max_tokens=1))
        engine.step()  # the executor refuses two writes to one slot
    engine.run()
    for sequence in [*twins, *newcomers]:
        engine.assert_complete(sequence)


def test_output_of_an_earlier_turn_is_reused() -> None:
    engine = Harness()
    first = engine.add(prompt(10), max_tokens=11)
    engine.run()
    second = engine.add([*first.prompt_ids, *first.output_ids, 5, 6], max_tokens=4)
    engine.run()
    engine.assert_complete(second)
    assert second.cached_tokens == 20  # all full pages of 10 + 11 tokens, but for the last token


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8)])
def test_the_last_prompt_token_is_always_computed(length: int, cached: int) -> None:
    engine = Harness()
    cold = engine.add(prompt(length), max_tokens=5)
    engine.run()
    warm = engine.add(prompt(length), max_tokens=5)
    engine.run()
    assert warm.cached_tokens == cached
    assert warm.output_ids == cold.output_ids == engine.expected(warm)


def test_salts_do_not_share() -> None:
    engine = Harness()
    sequences = [engine.add(prompt(20), cache_salt=salt) for salt in ["a", "b", ""]]
    engine.run()
    assert [s.cached_tokens for s in sequences] == [0, 0, 0]
    again = engine.add(prompt(20), cache_salt="b")
    engine.run()
    assert again.cached_tokens == 16
    for sequence in [*sequences, again]:
        engine.assert_complete(sequence)


def test_fieldbug_37_cold_warm_partial_page_and_after_eviction_agree() -> None:
    engine = Harness(num_pages=16, page_size=4)

    def ask(length: int) -> Sequence:
        sequence = engine.add(prompt(length), max_tokens=8)
        engine.run()
        engine.assert_complete(sequence)
        return sequence

    cold, warm = ask(22), ask(22)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 20)
    partial = ask(18)  # ends in the middle of a page that is cached in full
    assert partial.cached_tokens == 16
    filler = engine.add(prompt(50, seed=7), max_tokens=10)
    engine.run()
    engine.assert_complete(filler)
    assert engine.scheduler.counters.evicted_pages > 0
    evicted = ask(22)
    assert evicted.cached_tokens < 20
    assert cold.output_ids == warm.output_ids == evicted.output_ids


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    engine = Harness(num_pages=12, page_size=4)
    for seed in [1, 2, 1]:
        engine.add(prompt(17, seed=seed), max_tokens=1)
        engine.run()
    engine.add(prompt(16, seed=3), max_tokens=1)  # pushes four pages out
    engine.run()
    recent = engine.add(prompt(17, seed=1), max_tokens=1)
    engine.run()
    assert recent.cached_tokens == 16


def test_an_aborted_sequence_leaves_its_prefix_to_others() -> None:
    engine = Harness(max_batch_tokens=64)
    first = engine.add(prompt(33), max_tokens=20)
    engine.plan()
    engine.scheduler.abort(first.sequence_id)
    engine.apply()
    second = engine.add(prompt(33), max_tokens=20)
    plan = engine.plan()
    assert plan is not None
    entry = entry_of(plan, second)
    assert entry is not None
    assert entry.start == 32
    engine.apply()
    engine.run()
    engine.assert_complete(second)
