"""The loads that servers are compared under, and what counts of each.

Prompts are random token ids, so that their lengths are exact and no two share a prefix unless the scenario says so.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

# Ids that every vocabulary of the benchmarks has, beyond its special tokens.
LOWEST_ID, HIGHEST_ID = 1000, 40000

Width = Literal["bf16", "8-bit", "4-bit"]
WIDTHS: tuple[Width, ...] = ("bf16", "8-bit", "4-bit")


@dataclass(frozen=True)
class Metric:
    """A figure of a run: a field of Figures."""

    field: str
    unit: str
    more_is_better: bool = True

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times better ours is; above 1 when it is better."""
        return ours / theirs if self.more_is_better else theirs / ours


DECODE_RATE = Metric("decode_rate", "tok/s")  # of one stream, from its first token to its last
PROMPT_RATE = Metric("prompt_rate", "prompt tok/s")
OUTPUT_RATE = Metric("output_rate", "tok/s")  # of all streams, over the whole run
FIRST_TOKEN = Metric("first_token_ms", "ms", more_is_better=False)


@dataclass(frozen=True)
class Scenario:
    """`requests` requests, `streams` of them at a time."""

    name: str
    title: str
    metric: Metric
    streams: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    goals: dict[Width, float]  # the ratio to the best peer that is aimed at
    shared_tokens: int = 0  # of the prompt, the same in all requests

    def prompts(self, seed: int) -> list[list[int]]:
        """Token ids of each request's prompt; other seeds share nothing with them."""
        rng = random.Random(seed)

        def ids(count: int) -> list[int]:
            return [rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(count)]

        shared = ids(self.shared_tokens)
        return [shared + ids(self.prompt_tokens - self.shared_tokens) for _ in range(self.requests)]

    def warm_up(self) -> Scenario:
        """A short run of the same shapes, for what a server does only once."""
        few = min(self.streams, 4)
        return replace(self, streams=few, requests=few, output_tokens=min(self.output_tokens, 8))


_ALL = (
    Scenario("decode", "decode, 1 stream (128 in, 128 out)", DECODE_RATE, 1, 2, 128, 128,
             {"bf16": 1.2, "8-bit": 1.4, "4-bit": 1.6}),
    Scenario("prefill", "prefill of 1024", PROMPT_RATE, 1, 3, 1024, 1,
             {"bf16": 1.05, "8-bit": 1.3, "4-bit": 1.3}),
    Scenario("streams8", "8 streams (256 in, 64 out)", OUTPUT_RATE, 8, 8, 256, 64,
             {"bf16": 1.1, "8-bit": 1.3, "4-bit": 1.3}),
    Scenario("streams32", "32 streams (256 in, 64 out)", OUTPUT_RATE, 32, 32, 256, 64,
             {"bf16": 1.05, "8-bit": 1.3, "4-bit": 1.3}),
    Scenario("prefix", "32 requests sharing 512 of 544 prompt tokens, 32 out", OUTPUT_RATE, 32, 32, 544, 32,
             {"bf16": 1.2, "8-bit": 4.0, "4-bit": 6.0}, shared_tokens=512),
    Scenario("first-token", "time to first token, 128-token prompt", FIRST_TOKEN, 1, 5, 128, 2,
             {"bf16": 0.91, "8-bit": 0.91, "4-bit": 0.91}),
)  # fmt: skip

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
