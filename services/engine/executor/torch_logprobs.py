"""Log-probabilities of tokens from logits, in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.engine.plan import TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> TokenLogprobs:
    """Of one token per row. logits: [len(token_ids), vocab_size], float32 or bfloat16; computed in float32.

    Of equal logits the lowest id ranks first.
    """
    logits = logits.float()
    vocab_size = logits.shape[-1]
    num_top = min(num_top, vocab_size)
    ids = torch.arange(vocab_size, device=logits.device)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    chosen_logits = logits.gather(1, chosen)
    normaliser = logits.logsumexp(-1, keepdim=True)
    before = (logits > chosen_logits) | ((logits == chosen_logits) & (ids < chosen))
    top_ids = (_order_keys(logits) - ids).topk(num_top).values.neg_() & 0xFFFFFFFF
    return TokenLogprobs(
        num_top,
        (chosen_logits - normaliser)[:, 0].tolist(),
        (before.sum(-1) + 1).tolist(),
        top_ids.flatten().tolist(),
        (logits.gather(1, top_ids) - normaliser).flatten().tolist(),
    )


def _order_keys(logits: Tensor) -> Tensor:
    """Integers that are ordered as float32 logits are, in the upper half of int64: ids in the lower half break ties."""
    bits = (logits + 0.0).view(torch.int32)  # 0.0 and -0.0 are equal
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
