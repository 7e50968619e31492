"""lm-eval's local-completions: its log-likelihoods and texts are those of transformers' own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.engine.loading.files import read_model_files
from services.engine.loading.source import resolve
from tests.e2e.clients.conftest import RunProgram
from tests.e2e.test_logprobs import log_softmax
from tests.support.stack import Stack

pytestmark = pytest.mark.clients


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    for name, content in read_model_files(resolve("default")).tokenizer_files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


async def test_a_task_of_choices_and_one_of_texts(
    real_stack: Stack, reference_model: tuple[Any, Any], run_program: RunProgram, tokenizer_folder: Path
) -> None:
    said = run_program("lm_eval_task.py", real_stack.url, str(tokenizer_folder))
    model, tokenizer = reference_model
    assert len(said["likelihoods"]) == 14
    for context, continuation, logprob, is_greedy in said["likelihoods"]:
        ids, begin = tokenizer(context + continuation).input_ids, len(tokenizer(context).input_ids)
        rows, targets = log_softmax(model, ids)[begin - 1 : -1], ids[begin:]
        expected = [row[token_id].item() for row, token_id in zip(rows, targets, strict=True)]
        assert logprob == pytest.approx(sum(expected), abs=1e-2)
        assert is_greedy == (rows.argmax(-1).tolist() == targets)
    assert said["accuracy"] >= 0.5
    assert len(said["texts"]) == 3
    for context, text in said["texts"]:
        prompt = torch.tensor([tokenizer(context).input_ids])
        output = model.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.shape[1] :]
        full = tokenizer.decode(output, skip_special_tokens=True)
        assert text.strip() == full.split("\n")[0].split(".")[0].strip()
