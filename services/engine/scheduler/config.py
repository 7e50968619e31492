"""The scheduler's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Raises ValueError for values under which some sequence would never move."""

    max_batch_tokens: int = 512  # tokens per step, decodes and prefill chunks together
    max_num_seqs: int = 64  # sequences that run at once
    max_finishing_tokens: int = 0  # beyond that, where they are all that is left of a prompt
    max_mixed_prompt_tokens: int | None = None  # of a step in which streams decode and few prompts wait
    aging_s: float = 10.0  # seconds of waiting that outweigh one point of priority

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, not {self.max_num_seqs}")
        if self.max_batch_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_num_seqs ({self.max_num_seqs}): "
                "every running sequence decodes one token per step"
            )
        if self.max_finishing_tokens < 0:
            raise ValueError(f"max_finishing_tokens must be at least 0, not {self.max_finishing_tokens}")
        if self.max_mixed_prompt_tokens is not None and self.max_mixed_prompt_tokens < 1:
            raise ValueError(f"max_mixed_prompt_tokens must be at least 1, not {self.max_mixed_prompt_tokens}")
        if self.aging_s <= 0:
            raise ValueError(f"aging_s must be greater than 0, not {self.aging_s}")
