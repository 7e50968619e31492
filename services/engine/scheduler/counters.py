"""What the scheduler counts over its life, for metrics and the debug read-out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start; a reset of the scheduler does not set them back."""

    steps: int = 0
    computed_tokens: int = 0  # tokens in step plans, recomputed ones and guesses included
    preemptions: int = 0
    prefix_hit_tokens: int = 0  # prompt tokens that a first prefill took from the prefix cache
    prefix_miss_tokens: int = 0  # prompt tokens that a first prefill computed
    evicted_pages: int = 0
    spec_decode_drafts: int = 0  # times that guesses of a sequence's next tokens were checked
    spec_decode_draft_tokens: int = 0  # tokens guessed
    spec_decode_accepted_tokens: int = 0  # guesses that held
