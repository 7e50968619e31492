"""What a running request yields: text, and at last how it ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStart:
    """Known with the first token; times in microseconds."""

    schedule_wait_us: int
    prefill_us: int


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
class Ending:
    """The terminal event of a finished request. `finish_reason` is OpenAI's word: stop or length."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    times: StationTimes


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, possibly empty; `start` in the first, `ending` in the last."""

    text: str
    start: EngineStart | None = None
    ending: Ending | None = None
