"""Prompts whose states are pooled into one vector, however steps, caches and preemptions cut them."""

from __future__ import annotations

import numpy as np
import pytest

from services.engine.plan import States
from services.engine.scheduler.pooling import Pooler, Pooling
from tests.engine.scheduler.harness import Harness, prompt
from tests.engine.scheduler.paged_executor import HIDDEN_SIZE

BOTH = list(Pooling)


@pytest.mark.parametrize("pooling", BOTH)
@pytest.mark.parametrize("max_batch_tokens", [1, 5, 7, 64])
def test_a_prompt_is_pooled_however_it_is_cut(pooling: Pooling, max_batch_tokens: int) -> None:
    engine = Harness(max_batch_tokens=max_batch_tokens, max_num_seqs=1)
    sequence = engine.add(prompt(33), pooling=pooling)
    engine.run()
    engine.assert_complete(sequence)
    engine.assert_idle()


@pytest.mark.parametrize("pooling", BOTH)
def test_of_a_prefix_cache_the_mean_takes_nothing_and_both_leave_their_pages(pooling: Pooling) -> None:
    engine = Harness()
    engine.add(prompt(33))
    engine.run()
    sequence = engine.add(prompt(33), pooling=pooling)
    engine.run()
    engine.assert_complete(sequence)
    assert sequence.cached_tokens == (32 if pooling is Pooling.LAST else 0)
    fresh = engine.add(prompt(40, seed=3), pooling=pooling)
    engine.run()
    engine.assert_complete(fresh)
    after = engine.add(prompt(40, seed=3))
    engine.run()
    assert after.cached_tokens == 36
    engine.assert_complete(after)
    engine.assert_idle()


@pytest.mark.parametrize("pooling", BOTH)
def test_a_preempted_prompt_is_pooled_once(pooling: Pooling) -> None:
    """Decodes before it in line leave it a token per step, and take its pages as they grow."""
    engine = Harness(num_pages=32, max_batch_tokens=8, max_num_seqs=8)
    decodes = [engine.add(prompt(3, seed=seed), max_tokens=30) for seed in range(7)]
    sequence = engine.add(prompt(30, seed=9), pooling=pooling)
    engine.run()
    assert sequence.preemptions > 0
    engine.assert_complete(sequence)
    for decode in decodes:
        engine.assert_complete(decode)
    engine.assert_idle()


def test_beside_others_and_to_the_model_s_whole_length() -> None:
    engine = Harness(num_pages=32, max_model_len=48, max_batch_tokens=16)
    beside = engine.add(prompt(21, seed=5), max_tokens=9)
    longest = [engine.add(prompt(48, seed=7), pooling=pooling) for pooling in BOTH]
    with pytest.raises(ValueError, match="not 1 to 48"):
        engine.add(prompt(49), pooling=Pooling.LAST)
    one_token = engine.add([5], pooling=Pooling.MEAN)
    engine.run()
    for sequence in (*longest, one_token):
        engine.assert_complete(sequence)
        assert sequence.first_token_ns == sequence.last_token_ns is not None
    engine.assert_complete(beside)
    engine.assert_idle()


def test_an_abort_between_the_chunks_of_a_prompt() -> None:
    engine = Harness(max_batch_tokens=8, max_num_seqs=8)
    sequence = engine.add(prompt(30), pooling=Pooling.MEAN)
    engine.step()
    engine.plan()
    assert engine.scheduler.abort(sequence.sequence_id)
    assert engine.apply() == []
    engine.assert_idle()


def test_the_sum_does_not_depend_on_the_cuts_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    states: States = (rng.standard_normal((50, HIDDEN_SIZE)) * 10.0 ** rng.integers(-6, 6, (50, 1))).astype(np.float32)
    embeddings = set()
    for cuts in ([], [1], [17, 18, 40], list(range(1, 50))):
        pooler = Pooler(Pooling.MEAN, 50)
        for part in np.split(states, cuts):
            assert pooler.rows(pooler.num_dispensable, pooler.num_dispensable + len(part)) == range(len(part))
            pooler.take(part)
        embeddings.add(tuple(pooler.embedding()))
    assert len(embeddings) == 1
    assert np.linalg.norm(embeddings.pop()) == pytest.approx(1, abs=1e-6)


def test_states_of_nothing_but_zeros_stay_zeros() -> None:
    pooler = Pooler(Pooling.LAST, 1)
    pooler.take(np.zeros((1, 3), np.float32))
    assert pooler.embedding() == [0, 0, 0]
