"""What a running request yields: text, and at last how each of its choices ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.scored import Scored


@dataclass(frozen=True, slots=True)
class EngineStart:
    """Known with the first token; times in microseconds. `cached_tokens`: those of the prompt."""

    schedule_wait_us: int
    prefill_us: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StationTimes:
    """Where the time went behind the gateway, microseconds. Meanings: `postroad.v1.Timings`."""

    schedule_wait_us: int
    prefill_us: int
    decode_us: int
    detokenize_us: int
    engine_hop_us: int
    detokenizer_total_us: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one run, or of a whole request. Meanings: `postroad.v1.Usage`.

    `reasoning_tokens`: those of the completion that are reasoning.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """The terminal event of a finished run. `finish_reason` is OpenAI's word: stop or length; ok for an embedding.

    `stop_string`: the one that ended the text. `cumulative_logprob`: of the completion's tokens together, where
    log-probabilities are asked for.
    """

    finish_reason: str
    usage: Usage
    times: StationTimes
    stop_string: str | None = None
    cumulative_logprob: float | None = None

    @property
    def mean_logprob(self) -> float | None:
        """Per token of the completion; 0 without any."""
        if self.cumulative_logprob is None:
            return None
        return self.cumulative_logprob / max(1, self.usage.completion_tokens)


@dataclass(slots=True)  # not frozen: that takes longer to make, and one is made per token
class Delta:
    """New text of one choice, possibly empty; `start` in the choice's first, `ending` in its last.

    `tokens`: how many it stands for, those whose text is still held back included. `scored`: the tokens whose text
    begins in what was sent so far, where log-probabilities are asked for. `token_offsets`: where the text of each of
    the `tokens` begins, in characters of the choice's text, where that is asked for.
    """

    choice: int
    text: str
    tokens: int
    start: EngineStart | None = None
    ending: Ending | None = None
    scored: Scored | None = None
    token_offsets: Sequence[int] = ()
