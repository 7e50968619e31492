"""`make bench`: the served product over HTTP, all four services, under the scenarios of the comparison with peers.

Two clients take turns in each scenario: aiperf, an established tool, and our own light one (tests.bench.load). Where
the cores are few, aiperf takes part of what the server would need: both figures are printed, with the CPU time that
each client took.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from services.engine.loading.files import read_model_files
from services.engine.loading.source import resolve
from tests.bench.aiperf import Aiperf
from tests.bench.figures import Figures
from tests.bench.load import load
from tests.bench.scenarios import SCENARIOS, Scenario
from tests.support.stack import Stack

CLIENTS = ("aiperf", "own")


@dataclass(frozen=True)
class Run:
    figures: Figures
    client_seconds: float  # CPU time that the client took, its start included


Client = Callable[[Scenario, int], Figures]


def measure(client: Client, scenario: Scenario, seed: int) -> Run:
    """Raises RunFailed."""
    before = _cpu_seconds()
    figures = client(scenario, seed)
    return Run(figures, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    """Of this process and the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def own_client(url: str) -> Client:
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    return lambda scenario, seed: Figures.of(scenario, asyncio.run(load(address, "", scenario, seed)))


def line(client: str, scenario: Scenario, runs: Sequence[Run]) -> str:
    """The median of what the scenario is about, and of the time to first token."""
    values = [getattr(run.figures, scenario.metric.field) for run in runs]
    first = statistics.median(run.figures.first_token_ms for run in runs)
    seconds = statistics.median(run.client_seconds for run in runs)
    return (
        f"{scenario.title:54} {client:7} {statistics.median(values):9.1f} {scenario.metric.unit:13}"
        f" ({min(values):.1f} to {max(values):.1f})   first token {first:7.1f} ms   client {seconds:5.2f} s CPU"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench MODEL= ENGINE_FLAGS= BENCH_FLAGS=", description=__doc__)
    parser.add_argument("--model", default="", help="as for make serve; empty for the default model")
    parser.add_argument("--engine-flags", default="", help="for instance '--dtype float32'")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="default: all")
    parser.add_argument("--client", choices=CLIENTS, action="append", help="default: both")
    parser.add_argument("--turns", type=int, default=3, help="runs of each client in each scenario")
    parser.add_argument("--root", type=Path, default=Path("build/peers"), help="where aiperf is installed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the services are stopped on the way out
    files = read_model_files(resolve(options.model or "default"))
    with (
        tempfile.TemporaryDirectory() as tokenizer,
        Stack(model=options.model, engine_flags=options.engine_flags) as stack,
    ):
        for name, content in files.tokenizer_files.items():
            (Path(tokenizer) / name).write_bytes(content)
        own = own_client(stack.url)
        clients: dict[str, Client] = {}
        for name in options.client or CLIENTS:
            clients[name] = own if name == "own" else _aiperf(options, stack.url, Path(tokenizer))
        for scenario in (SCENARIOS[name] for name in options.scenario or SCENARIOS):
            own(scenario.warm_up(), time.time_ns())
            turns = [{name: measure(clients[name], scenario, time.time_ns()) for name in clients}
                     for _ in range(options.turns)]  # fmt: skip
            for name in clients:
                print(line(name, scenario, [turn[name] for turn in turns]), flush=True)


def _aiperf(options: argparse.Namespace, url: str, tokenizer: Path) -> Client:
    model = resolve(options.model or "default").served_name
    return Aiperf(options.root.resolve() / "aiperf", url, model, tokenizer).run


if __name__ == "__main__":
    main()
