"""flashinfer's fused operations against plain torch, with a stand-in for the kernels: they need a GPU."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from services.engine.executor.attention import TorchAttention
from services.engine.executor.batch import StepBatch
from services.engine.executor.flashinfer_ops import FlashInferOps
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.uploads import Uploads
from services.engine.models.decoder import Decoder
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.plans import Sequence
from tests.engine.models.reference import FAMILIES, decoder

# Among them: weights added to 1, two ropes, layers without one, a part of a head turned, scaled cosines.
PICKED = (
    "llama",
    "qwen3",
    "gemma3",
    "smollm3, window",
    "phi3, window, part of a head turned",
    "llama, rope yarn",
)


def _hidden_states(model: Decoder, sequences: list[Sequence]) -> torch.Tensor:
    pool = KvPool(model.config, 32, 4, model.dtype, model.device)
    with torch.inference_mode():
        batch = StepBatch.build([sequence.plan() for sequence in sequences], 4, Uploads(model.device))
        attend = TorchAttention(pool, model.config).prepare(batch)
        return model.hidden_states(batch.token_ids, batch.positions, attend)


@pytest.mark.parametrize("family", PICKED)
def test_states_are_those_of_plain_torch(family: str) -> None:
    rng = random.Random(1)
    sequences = [
        Sequence(i, [rng.randrange(97) for _ in range(length)], list(range(i * 8, i * 8 + 8)))
        for i, length in enumerate((29, 1, 4))
    ]
    model = decoder(FAMILIES[family])
    fused = replace(model, ops=FlashInferOps(FlashInferOnCpu(), model.ropes, max_model_len=32))
    embeddings = model.embeddings.clone()
    expected = _hidden_states(model, sequences)
    torch.testing.assert_close(_hidden_states(fused, sequences), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(model.embeddings, embeddings)  # what is overwritten is a step's own
