"""`python -m tests.bench.load --url http://127.0.0.1:8000`: one scenario against a running server, as JSON.

For any server with OpenAI's /v1/completions, streaming, that takes token ids and `ignore_eos`. The client takes 0.1 ms
of CPU per event, so that it hardly disturbs a server that shares the machine with it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import time
from urllib.parse import urlsplit

from tests.bench.figures import Figures
from tests.bench.scenarios import SCENARIOS, Scenario
from tests.bench.sse_client import Answer, Connection


async def load(address: tuple[str, int], model: str, scenario: Scenario, seed: int) -> list[Answer]:
    """The answers of one run. Raises OSError when the server cannot be reached."""
    prompts = iter(scenario.prompts(seed))

    async def one_request(prompt: list[int]) -> Answer:
        async with Connection(*address) as connection:  # of its own: some servers close it after a stream
            return await connection.stream_completion(body(model, scenario, prompt))

    async def one_stream() -> list[Answer]:
        return [await one_request(prompt) for prompt in prompts]

    streams = await asyncio.gather(*(one_stream() for _ in range(scenario.streams)))
    return [answer for answers in streams for answer in answers]


def body(model: str, scenario: Scenario, prompt: list[int]) -> dict[str, object]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": scenario.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load", description=__doc__)
    parser.add_argument("--url", required=True, help="base URL, without /v1")
    parser.add_argument("--model", default="", help="the name that the server knows")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="default: all")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    url = urlsplit(options.url)
    address = (url.hostname or "127.0.0.1", url.port or 80)
    for name in options.scenario or SCENARIOS:
        scenario = SCENARIOS[name]
        asyncio.run(load(address, options.model, scenario.warm_up(), time.time_ns()))
        for _ in range(options.repeats):
            before = time.process_time()
            answers = asyncio.run(load(address, options.model, scenario, time.time_ns()))
            used = time.process_time() - before
            figures = dataclasses.asdict(Figures.of(scenario, answers))
            print(json.dumps({"scenario": name, "client_cpu_s": used} | figures), flush=True)


if __name__ == "__main__":
    main()
