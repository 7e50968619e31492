"""Scores of prompts and outputs, and prompts that are computed and not continued."""

from __future__ import annotations

import pytest

from services.engine.scheduler.sequence import FinishReason, Sequence
from tests.engine.scheduler.harness import Harness, prompt
from tests.engine.scheduler.paged_executor import prompt_scores


def assert_scored(engine: Harness, sequence: Sequence) -> None:
    """Each token of the prompt from the second on has its score, once and in order."""
    assert engine.prompt_scores[sequence.sequence_id] == prompt_scores(sequence.prompt_ids)


@pytest.mark.parametrize("max_batch_tokens", [1, 5, 7, 64])
def test_a_prompt_is_scored_however_it_is_cut(max_batch_tokens: int) -> None:
    engine = Harness(max_batch_tokens=max_batch_tokens, max_num_seqs=1)
    sequence = engine.add(prompt(33), max_tokens=3, prompt_logprobs=2)
    engine.run()
    engine.assert_complete(sequence)
    assert_scored(engine, sequence)
    assert engine.scores[sequence.sequence_id] == []
    engine.assert_idle()


def test_a_scored_prompt_takes_nothing_from_the_prefix_cache_and_leaves_its_pages_there() -> None:
    engine = Harness()
    warm = engine.add(prompt(33))
    engine.run()
    scored = engine.add(prompt(33), prompt_logprobs=0)
    engine.run()
    assert scored.cached_tokens == 0
    assert_scored(engine, scored)
    after = engine.add(prompt(33))
    engine.run()
    assert after.cached_tokens == 32
    for sequence in (warm, scored, after):
        engine.assert_complete(sequence)
    engine.assert_idle()


def test_preempted_prompts_are_scored_once() -> None:
    engine = Harness(num_pages=24, page_size=4, max_batch_tokens=8, max_num_seqs=8)
    sequences = [engine.add(prompt(30, seed=i), max_tokens=30, prompt_logprobs=1, logprobs=0) for i in range(4)]
    engine.run()
    assert engine.scheduler.counters.preemptions > 0
    for sequence in sequences:
        engine.assert_complete(sequence)
        assert_scored(engine, sequence)
        whole = prompt_scores(sequence.prompt_ids + sequence.output_ids)
        assert engine.scores[sequence.sequence_id] == whole[len(sequence.prompt_ids) - 1 :]
    engine.assert_idle()


def test_a_prompt_of_one_token_has_no_score() -> None:
    engine = Harness()
    sequence = engine.add([5], max_tokens=2, prompt_logprobs=3, logprobs=1)
    engine.run()
    engine.assert_complete(sequence)
    assert_scored(engine, sequence)
    assert len(engine.scores[sequence.sequence_id]) == 2


def test_fieldbug_16_without_tokens_to_generate_the_prompt_alone_is_computed() -> None:
    engine = Harness(num_pages=16, page_size=4, max_batch_tokens=8, max_num_seqs=8)
    beside = engine.add(prompt(6, seed=1), max_tokens=12, logprobs=0)
    scored = engine.add(prompt(21, seed=2), max_tokens=0, prompt_logprobs=0)
    plain = engine.add(prompt(17, seed=3), max_tokens=0)
    engine.run()
    for sequence in (scored, plain):
        assert sequence.finish_reason is FinishReason.LENGTH
        assert sequence.output_ids == engine.received[sequence.sequence_id] == []
        assert sequence.num_tokens in (21, 17)
        assert sequence.first_token_ns == sequence.last_token_ns is not None
    assert_scored(engine, scored)
    engine.assert_complete(beside)
    engine.assert_idle()


def test_a_prompt_that_fills_the_model_may_be_computed_and_not_continued() -> None:
    engine = Harness(num_pages=8, page_size=4)
    whole = engine.add(prompt(32), max_tokens=0, prompt_logprobs=0)
    with pytest.raises(ValueError, match="not 1 to 31"):
        engine.add(prompt(32), max_tokens=1)
    engine.run()
    assert_scored(engine, whole)
    engine.assert_idle()


def test_an_abort_between_the_chunks_of_a_scored_prompt() -> None:
    engine = Harness(max_batch_tokens=8, max_num_seqs=8)
    sequence = engine.add(prompt(30), max_tokens=0, prompt_logprobs=0)
    engine.step()
    engine.plan()
    assert engine.scheduler.abort(sequence.sequence_id)
    assert engine.apply() == []
    assert engine.prompt_scores[sequence.sequence_id] == prompt_scores(sequence.prompt_ids)[:8]
    engine.assert_idle()
