"""`make bench-gaps`: how evenly the tokens of a running stream come while long prompts arrive.

One stream decodes, and a prompt of 1,000 tokens comes at regular intervals. The stream's 99th percentile of the time
between two events is set against its median, with the engine as it is and with one whose prompts take whole steps
(`--max-mixed-prompt-tokens` as large as `--max-batch-tokens`); the two take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.bench.figures import Figures
from tests.bench.load import load
from tests.bench.scenarios import OUTPUT_RATE, PROMPT_RATE, Scenario
from tests.support.stack import Stack

STREAM = Scenario("stream", "the stream", OUTPUT_RATE, 1, 1, 128, 400, goals={})
PROMPT = Scenario("prompt", "a prompt", PROMPT_RATE, 1, 1, 1000, 1, goals={})
GOAL = 3.0
VARIANTS = {"as it is": "", "whole steps": "--max-mixed-prompt-tokens=512"}


@dataclass(frozen=True)
class Gaps:
    p50_ms: float
    p99_ms: float
    first_token_ms: float  # of the prompts that arrived, median

    @property
    def ratio(self) -> float:
        return self.p99_ms / self.p50_ms


async def measure(url: str, every: float) -> Gaps:
    """One stream, and a prompt every so many seconds until it ends. Raises RunFailed."""
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    stream = asyncio.create_task(load(address, "", STREAM, time.time_ns()))
    prompts = []
    while not (await asyncio.wait([stream], timeout=every))[0]:
        prompts.append(asyncio.create_task(load(address, "", PROMPT, time.time_ns())))
    figures = Figures.of(STREAM, await stream)
    firsts = [Figures.of(PROMPT, await prompt).first_token_ms for prompt in prompts]
    assert figures.gap_p50_ms is not None and figures.gap_p99_ms is not None, "a stream without gaps"  # noqa: PT018
    return Gaps(figures.gap_p50_ms, figures.gap_p99_ms, statistics.median(firsts))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-gaps BENCH_FLAGS=", description=__doc__)
    parser.add_argument("--model", default="", help="as for make serve; empty for the default model")
    parser.add_argument("--every", type=float, default=0.7, help="seconds from one prompt to the next")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the services are stopped on the way out
    found: dict[str, list[Gaps]] = {name: [] for name in VARIANTS}
    with ExitStack() as stacks:
        urls = {
            name: stacks.enter_context(Stack(model=options.model, engine_flags=flags)).url
            for name, flags in VARIANTS.items()
        }
        for _ in range(options.turns):
            for name, url in urls.items():
                found[name].append(asyncio.run(measure(url, options.every)))
    for name, runs in found.items():
        p50, p99, ratio, first = (
            statistics.median(getattr(run, field) for run in runs)
            for field in ("p50_ms", "p99_ms", "ratio", "first_token_ms")
        )
        print(f"{name:12} p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   p99 / p50 {ratio:5.2f} (goal {GOAL:g})"
              f"   first token of a prompt {first:6.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
