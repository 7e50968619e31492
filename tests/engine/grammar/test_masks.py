"""The masks of a step are those of its sequences' grammars, wherever they are computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from services.engine.grammar.compiler import GrammarCompiler
from services.engine.grammar.form import OutputForm
from services.engine.grammar.masks import MaskThread
from services.engine.grammar.state import GrammarState
from services.engine.plan import SamplingJob, SamplingParams, SequencePlan, StepPlan
from tests.support.engines import default_tokenizer

EOS = 2  # of the default model
REGEXES = ["a+", "b?c", "[0-9]{2,4}", "(x|yz)w", "d*"]


@pytest.fixture(params=[True, False], ids=["beside the step", "before the step"])
def masks(request: pytest.FixtureRequest) -> Iterator[MaskThread]:
    thread = MaskThread(beside_step=request.param)
    yield thread
    thread.close()


def state(compiler: GrammarCompiler, regex: str) -> GrammarState:
    return compiler.compile(OutputForm("regex", regex)).state(frozenset({EOS}))


def planned(sequence_id: int, grammar: GrammarState | None, token_ids: list[int], num_jobs: int = 1) -> SequencePlan:
    jobs = [SamplingJob(SamplingParams(), [0], []) for _ in range(num_jobs)]
    return SequencePlan(sequence_id, token_ids, 0, [0], jobs, grammar=grammar)


@pytest.mark.parametrize("count", range(len(REGEXES) + 1))
def test_each_job_gets_the_mask_of_its_own_grammar(masks: MaskThread, compiler: GrammarCompiler, count: int) -> None:
    for _ in range(20):  # the threads share the work out differently each time
        entries = [planned(number, state(compiler, regex), [0]) for number, regex in enumerate(REGEXES[:count])]
        entries.insert(count // 2, planned(100, None, [0]))
        masks.start(StepPlan(1, entries))
        for entry in entries:
            (job,) = entry.sampling
            if entry.grammar is None:
                assert job.mask is None
                continue
            assert job.mask is not None
            (expected,) = state(compiler, REGEXES[entry.sequence_id]).masks([], [True])
            assert np.array_equal(job.mask.words(), expected)


def test_a_prefill_that_samples_nothing_gets_none(masks: MaskThread, compiler: GrammarCompiler) -> None:
    entry = planned(1, state(compiler, "a+"), [0, 0], num_jobs=0)
    masks.start(StepPlan(1, [entry]))
    assert entry.sampling == []


def test_guesses_get_masks_of_their_own(masks: MaskThread, compiler: GrammarCompiler) -> None:
    (guess,) = default_tokenizer().encode("b", add_special_tokens=False).ids
    entry = planned(1, state(compiler, "b?c"), [0, guess], num_jobs=2)
    masks.start(StepPlan(1, [entry]))
    expected = state(compiler, "b?c").masks([guess], [True, True])
    for job, words in zip(entry.sampling, expected, strict=True):
        assert job.mask is not None
        assert np.array_equal(job.mask.words(), words)
    assert not np.array_equal(expected[0], expected[1])
