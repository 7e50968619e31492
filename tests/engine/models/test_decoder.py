"""Every family's logits are those of transformers' own model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Attend
from tests.engine.models.reference import FAMILIES, Oracle, decoder


def _attend(config: ModelConfig) -> Attend:
    """Attention over the tokens at hand as the formula has it, without any cache."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (x.repeat_interleave(config.num_heads // config.num_kv_heads, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, keys) * config.attention_scale
        if (cap := config.attention_softcap) is not None:
            scores = cap * torch.tanh(scores / cap)
        seen = torch.ones(len(q), len(q), dtype=torch.bool).tril()
        if (window := config.layers[layer].window) is not None:
            seen &= ~seen.tril(-window)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)

    return attend


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str) -> None:
    config = FAMILIES[family]
    token_ids = torch.randint(97, (80,), generator=torch.Generator().manual_seed(1))
    model = decoder(config)
    with torch.inference_mode():
        logits = model.logits(model.hidden_states(token_ids, torch.arange(80), _attend(model.config)))
    expected = Oracle.of(config).logits(token_ids.tolist())
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)


def test_a_single_row_gives_the_same_as_among_others() -> None:
    """One row takes another road through the linear layers (a matrix-vector product), with and without bias."""
    for family in ("llama", "llama, biases"):
        model = decoder(FAMILIES[family])
        token_ids = torch.tensor([5, 17])
        with torch.inference_mode():
            both = model.logits(model.hidden_states(token_ids, torch.arange(2), _attend(model.config)))
            alone = model.logits(model.hidden_states(token_ids[:1], torch.arange(1), _attend(model.config)))
        torch.testing.assert_close(alone[0], both[0], atol=1e-4, rtol=1e-4)
