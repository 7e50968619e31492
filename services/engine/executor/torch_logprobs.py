"""Log-probabilities of tokens from logits, in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from services.engine.executor.transfers import Download
from services.engine.executor.uploads import Uploads
from services.engine.plan import TokenLogprobs


@dataclass(frozen=True, slots=True)
class LogprobsOnTheWay:
    """Of one token per row: what `TokenLogprobs` holds, as tensors whose way to the CPU has begun."""

    logprobs: Download  # [rows]
    ranks: Download  # [rows]
    top_ids: Download  # [rows, num_top]
    top_logprobs: Download  # [rows, num_top]

    @classmethod
    def launch(cls, logits: Tensor, token_ids: Tensor, num_top: int) -> Self:
        """logits: [rows, vocab_size], float32 or bfloat16; computed in float32. token_ids: [rows], int64.

        Of equal logits the lowest id ranks first.
        """
        logits = logits.float()
        ids = torch.arange(logits.shape[-1], device=logits.device)
        chosen = token_ids[:, None]
        chosen_logits = logits.gather(1, chosen)
        normaliser = logits.logsumexp(-1, keepdim=True)
        before = (logits > chosen_logits) | ((logits == chosen_logits) & (ids < chosen))
        top_ids = (_order_keys(logits) - ids).topk(min(num_top, len(ids))).values.neg_() & 0xFFFFFFFF
        return cls(
            Download((chosen_logits - normaliser)[:, 0]),
            Download(before.sum(-1) + 1),
            Download(top_ids),
            Download(logits.gather(1, top_ids) - normaliser),
        )

    def read(self) -> TokenLogprobs:
        """Waits for them."""
        top_ids = self.top_ids.read()
        return TokenLogprobs(
            top_ids.shape[1],
            self.logprobs.read().tolist(),
            self.ranks.read().tolist(),
            top_ids.flatten().tolist(),
            self.top_logprobs.read().flatten().tolist(),
        )


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int, uploads: Uploads) -> TokenLogprobs:
    """As `LogprobsOnTheWay`, and waits for them. logits: [len(token_ids), vocab_size]."""
    return LogprobsOnTheWay.launch(logits, uploads(token_ids, torch.int64), num_top).read()


def _order_keys(logits: Tensor) -> Tensor:
    """Integers that are ordered as float32 logits are, in the upper half of int64: ids in the lower half break ties."""
    bits = (logits + 0.0).view(torch.int32)  # 0.0 and -0.0 are equal
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
