"""The steps that size the KV pool are steps that an executor runs, as large as the settings allow."""

from __future__ import annotations

import pytest

from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.profile_steps import ProfileSteps
from services.engine.executor.torch_executor import TorchExecutor
from tests.engine.models.reference import FAMILIES, decoder


@pytest.mark.parametrize(
    ("max_batch_tokens", "max_num_seqs", "max_model_len", "page_size"),
    [(32, 8, 200, 4), (32, 32, 200, 16), (40, 3, 10, 4), (64, 1, 50, 16), (17, 5, 500, 1)],
)
def test_they_are_full_and_run(max_batch_tokens: int, max_num_seqs: int, max_model_len: int, page_size: int) -> None:
    steps = ProfileSteps.of(max_batch_tokens, max_num_seqs, max_model_len, page_size)
    many, longest = steps.plans
    assert len(many.sequences) == sum(len(s.sampling) for s in many.sequences) == max_num_seqs
    assert max_batch_tokens - max_num_seqs < many.num_tokens <= max_batch_tokens or max_model_len < max_batch_tokens
    [chunk] = longest.sequences
    assert chunk.start + len(chunk.token_ids) == max_model_len
    assert len(chunk.token_ids) == min(max_batch_tokens, max_model_len)
    for plan in steps.plans:
        written = [
            (s.page_table[p // page_size], p % page_size)
            for s in plan.sequences
            for p in range(s.start, s.start + len(s.token_ids))
        ]
        assert len(set(written)) == len(written)
        assert max(page for s in plan.sequences for page in s.page_table) < steps.num_pages
    executor = TorchExecutor(ModelRunner(decoder(FAMILIES["llama"]), steps.num_pages, page_size))
    for plan in steps.plans:
        assert len(executor.execute(plan).token_ids) == len(plan.sequences)
