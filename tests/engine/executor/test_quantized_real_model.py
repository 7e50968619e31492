"""What quantization does to the default model's predictions, measured on a page of prose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

pytest.importorskip("postroad_native")

from services.engine.executor.base import ExecutorInfo
from services.engine.loading.arrays import iter_stored
from services.engine.loading.files import read_model_files
from services.engine.loading.gguf_weights import stored_blocks
from services.engine.loading.source import resolve
from services.engine.models.config import ModelConfig
from services.engine.native_startup import load_model
from services.engine.quantization import WeightFormats
from services.engine.settings import NativeQuantization
from tests.engine.native.stepping import plan, step

# Public domain (Austen, Dickens, Melville), and a page about a post road.
PROSE = Path(__file__).with_name("prose.txt")
CHUNK = 256


@pytest.fixture(scope="module")
def plain() -> float:
    return _perplexity("none")


@pytest.mark.parametrize(
    ("quantization", "from_blocks", "linears", "bound"),
    [
        ("auto", True, {"int4_group32": 120, "int8_group32": 1}, 0.03),
        ("int8", True, {"int8": 120, "int8_group32": 1}, 0.01),
        ("int4", False, {"int4": 120, "int8": 1}, 0.06),
    ],
)
def test_perplexity_stays_close_to_that_of_bfloat16(
    plain: float, quantization: NativeQuantization, from_blocks: bool, linears: dict[str, int], bound: float
) -> None:
    """With the file's blocks as they are, or quantized as those of a file that has none."""
    assert abs(_perplexity(quantization, linears, from_blocks) / plain - 1) < bound


def _perplexity(
    quantization: NativeQuantization, linears: dict[str, int] | None = None, from_blocks: bool = True
) -> float:
    """exp of the mean negative log-likelihood of the text's tokens but the first."""
    source = resolve("default")
    files = read_model_files(source)
    config = ModelConfig.from_hf(files.config)
    token_ids = Tokenizer.from_buffer(files.tokenizer_files["tokenizer.json"]).encode(PROSE.read_text()).ids
    pages = range(-(-len(token_ids) // 16))
    info = ExecutorInfo(len(pages), 16, config.vocab_size, len(token_ids))
    formats = WeightFormats.choose(quantization, "bf16", config, stored_blocks(source.path) if from_blocks else {})
    model = load_model(config, iter_stored(source, files.config), info, 2, formats)
    assert model.num_linears == (linears or {"none": 121})
    losses = []
    for start in range(0, len(token_ids), CHUNK):
        chunk = token_ids[start : start + CHUNK]
        logits = step(model, plan(chunk, pages, start), logit_rows=range(len(chunk)))
        targets = token_ids[start + 1 : start + 1 + CHUNK]
        logits = logits[: len(targets)] - logits[: len(targets)].max(1, keepdims=True)
        losses.append(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(targets)), targets])
    return float(np.exp(np.concatenate(losses).mean()))
