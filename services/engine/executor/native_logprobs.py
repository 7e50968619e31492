"""Log-probabilities of tokens from logits, in C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import postroad_native

from services.engine.plan import TokenLogprobs


def token_logprobs(
    logits: Any, rows: Sequence[int], token_ids: Sequence[int], num_top: int, threads: int
) -> TokenLogprobs:
    """Of one token for each of `rows` of logits, a float32 buffer [.., vocab_size]. Of equal logits the lowest id ranks
    first. num_top: at most vocab_size."""
    logprobs, ranks, top_ids, top_logprobs = postroad_native.logprobs(
        logits, np.array(rows, np.int32), np.array(token_ids, np.int32), num_top, threads
    )
    return TokenLogprobs(
        num_top, logprobs.tolist(), ranks.tolist(), top_ids.ravel().tolist(), top_logprobs.ravel().tolist()
    )
