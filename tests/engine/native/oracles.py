"""The torch reference, stepping over the same plans as a native model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from services.engine.executor.attention import TorchAttention
from services.engine.executor.batch import StepBatch
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.uploads import Uploads
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.weights import load_model
from services.engine.plan import SamplingJob, SamplingParams, SequencePlan
from tests.engine.native.quantizing import rounded_weights
from tests.engine.native.stepping import PAGE_SIZE, Logits


@dataclass
class TorchStepper:
    """A decoder and its own KV pool."""

    model: Decoder
    pool: KvPool

    @classmethod
    def of(cls, model: Decoder, num_pages: int = 64, page_size: int = PAGE_SIZE) -> TorchStepper:
        return cls(model, KvPool(model.config, num_pages, page_size, model.dtype, model.device))

    def step(self, *plans: SequencePlan) -> Logits:
        """Logits of each plan's last token, in the order of the plans: [sequences, vocab_size]."""
        job = SamplingJob(SamplingParams(), [], [])
        numbered = [SequencePlan(i, p.token_ids, p.start, p.page_table, [job]) for i, p in enumerate(plans)]
        with torch.inference_mode():
            batch = StepBatch.build(numbered, self.pool.page_size, Uploads(self.model.device))
            attend = TorchAttention(self.pool, self.model.config).prepare(batch)
            hidden = self.model.hidden_states(batch.token_ids, batch.positions, attend)
            logits = self.model.logits(hidden[batch.sampled_rows]).float().numpy()
        return np.stack([logits[batch.sampled_ids.index(i)] for i in range(len(plans))])

    def all_logits(self, token_ids: list[int]) -> Logits:
        """[tokens, vocab_size] of a prompt in the first pages."""
        ends = range(1, len(token_ids) + 1)
        pages = list(range(len(token_ids) // self.pool.page_size + 1))
        return np.concatenate(
            [self.step(SequencePlan(0, token_ids[end - 1 : end], end - 1, pages, [])) for end in ends]
        )


def rounded_decoder(config: dict[str, Any], seed: int = 0) -> Decoder:
    """A float32 decoder whose weights are bfloat16 numbers: what a bf16 model computes if it rounds nothing else."""
    parsed = ModelConfig.from_hf(config)
    weights = ((name, tensor.bfloat16().float()) for name, tensor in random_weights(parsed, seed))
    return load_model(parsed, weights, torch.float32, "cpu")


def quantized_decoder(config: dict[str, Any], quantization: str, seed: int = 0) -> Decoder:
    """A float32 decoder whose matrices are rounded as the format does it; a table of embeddings of its own is not."""
    parsed = ModelConfig.from_hf(config)
    table = None if parsed.tie_word_embeddings else "model.embed_tokens.weight"

    def rounded(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim != 2 or name == table:
            return tensor
        return torch.from_numpy(rounded_weights(tensor.numpy(), quantization))

    weights = ((name, rounded(name, tensor)) for name, tensor in random_weights(parsed, seed))
    return load_model(parsed, weights, torch.float32, "cpu")
