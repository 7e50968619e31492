"""Every family's logits are those of transformers' own model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.engine.models.reference import FAMILIES, Oracle, decoder


def _attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over the tokens at hand, without any cache."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str) -> None:
    config = FAMILIES[family]
    token_ids = torch.randint(97, (80,), generator=torch.Generator().manual_seed(1))
    model = decoder(config)
    with torch.inference_mode():
        logits = model.logits(model.hidden_states(token_ids, torch.arange(80), _attend))
    expected = Oracle.of(config).logits(token_ids.tolist())
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)


def test_a_single_row_gives_the_same_as_among_others() -> None:
    """One row takes another road through the linear layers (a matrix-vector product), with and without bias."""
    for family in ("llama", "llama, biases"):
        model = decoder(FAMILIES[family])
        token_ids = torch.tensor([5, 17])
        with torch.inference_mode():
            both = model.logits(model.hidden_states(token_ids, torch.arange(2), _attend))
            alone = model.logits(model.hidden_states(token_ids[:1], torch.arange(1), _attend))
        torch.testing.assert_close(alone[0], both[0], atol=1e-4, rtol=1e-4)
