"""`make bench-peers`: Postroad beside other servers, on this machine, under the same loads.

The contestants of one model and width are all started, and all but the one that is measured are paused. For each row
they take turns (A, B, C, A, B, C, …), so that neighbours in time are compared: the speed of a shared host changes from
minute to minute. Peers are installed, built and fed with models under --root, each in an environment of its own; the
first time this takes an hour. Every run is kept in --results, and the tables are made from all runs in it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from services.engine.models.config import ModelConfig
from tests.bench.cpu_time import machine_seconds, tree_seconds
from tests.bench.figures import Figures, RunFailed
from tests.bench.limits import Memory, decode_bytes
from tests.bench.models import NAMES, SHAPES
from tests.bench.peers.base import Peer, Server
from tests.bench.peers.llama_cpp import LlamaCpp
from tests.bench.peers.openvino import OpenVino
from tests.bench.peers.postroad import Postroad
from tests.bench.peers.vllm import Vllm
from tests.bench.results import Run, RunLog, comparisons
from tests.bench.scenarios import DECODE_RATE, SCENARIOS, WIDTHS, Scenario, Width
from tests.bench.tables import table

PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in (Postroad, LlamaCpp, Vllm, OpenVino)}


@dataclass(frozen=True)
class Contestant:
    """A running server of one peer."""

    peer: str
    weight_format: str
    server: Server


class Round:
    """The contestants of one model and width, all running, all paused. Use as a context manager."""

    def __init__(self, peers: Sequence[Peer], model: str, width: Width, log: RunLog) -> None:
        self._servers = [
            (peer.name, weight_format, peer.server(model, weight_format))
            for peer in peers
            for weight_format in peer.formats[width]
        ]
        self._model, self._width, self._log = model, width, log
        self._config = ModelConfig.from_hf(SHAPES[model])
        self._memory = Memory(len(os.sched_getaffinity(0)))
        self._contestants: list[Contestant] = []

    def __enter__(self) -> Round:
        with ExitStack() as stack:
            for name, weight_format, server in self._servers:
                print(f"# starting {name} {weight_format} with {self._model}", flush=True)
                stack.enter_context(server)
                server.pause()
                self._contestants.append(Contestant(name, weight_format, server))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, scenario: Scenario, turns: int) -> None:
        """`turns` runs of each contestant."""
        first = time.time_ns()  # no two prompts of a comparison are the same
        for turn in range(turns):
            for contestant in self._contestants:
                contestant.server.resume()
                try:
                    if turn == 0:
                        contestant.server.run(scenario.warm_up(), seed=first - 1)
                    self._log.append(self._run(contestant, scenario, first + turn))
                except RunFailed as error:
                    print(f"# {contestant.peer} {contestant.weight_format}, {scenario.name}: {error}", flush=True)
                finally:
                    contestant.server.pause()

    def _run(self, contestant: Contestant, scenario: Scenario, turn: int) -> Run:
        server = contestant.server
        bandwidth = self._memory.bandwidth() if scenario.metric is DECODE_RATE else None
        start, machine = time.perf_counter(), machine_seconds()
        used, client = tree_seconds(server.pid), time.process_time()
        answers = server.run(scenario, seed=turn)
        wall, client = time.perf_counter() - start, time.process_time() - client
        used, machine = tree_seconds(server.pid) - used, machine_seconds() - machine
        value = getattr(Figures.of(scenario, answers), scenario.metric.field)
        run = Run(
            model=self._model,
            width=self._width,
            scenario=scenario.name,
            peer=contestant.peer,
            weight_format=contestant.weight_format,
            turn=turn,
            value=value,
            server_cores=round(used / wall, 3),
            client_cores=round(client / wall, 3),
            foreign_cores=round(max(0.0, machine - used - client) / wall, 3),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            bandwidth_share=round(value * self._bytes_per_token(scenario) / bandwidth, 3) if bandwidth else None,
        )
        print(f"# {run.contestant:14} {scenario.name:12} {value:9.1f} {scenario.metric.unit}"
              f"   {wall:5.1f} s, foreign {run.foreign_cores:.2f}", flush=True)  # fmt: skip
        return run

    def _bytes_per_token(self, scenario: Scenario) -> float:
        return decode_bytes(self._config, self._width, scenario.prompt_tokens + scenario.output_tokens // 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-peers BENCH_FLAGS=", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("build/peers"), help="where peers and models are kept")
    parser.add_argument("--results", type=Path, help="default: results.jsonl under --root")
    parser.add_argument("--model", choices=NAMES, action="append", help="default: both")
    parser.add_argument("--width", choices=WIDTHS, action="append", help="default: all")
    parser.add_argument("--peer", choices=PEERS, action="append", help="default: all")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="default: all")
    parser.add_argument("--turns", type=int, default=3, help="runs of each contestant in each row")
    parser.add_argument("--only", choices=("set-up", "tables"), help="no runs: prepare them, or print those there are")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # servers are stopped on the way out
    options.root = options.root.resolve()
    options.root.mkdir(parents=True, exist_ok=True)
    log = RunLog(options.results or options.root / "results.jsonl")
    peers = [PEERS[name](options.root) for name in options.peer or PEERS]
    models, widths = options.model or NAMES, options.width or WIDTHS
    if options.only != "tables":
        set_up(peers, models, widths)
    if options.only is None:
        for model in models:
            for width in widths:
                with Round(peers, model, width, log) as contest:
                    for name in options.scenario or SCENARIOS:
                        contest.measure(SCENARIOS[name], options.turns)
    if options.only != "set-up":
        print_tables(log.read(), models, widths)


def set_up(peers: Sequence[Peer], models: Sequence[str], widths: Sequence[Width]) -> None:
    for peer in peers:
        peer.set_up()
        for model in models:
            for width in widths:
                for weight_format in peer.formats[width]:
                    peer.convert(model, weight_format)


def print_tables(runs: Sequence[Run], models: Sequence[str], widths: Sequence[Width]) -> None:
    for model in models:
        for width in widths:
            if rows := comparisons(runs, model, width):
                print(f"\n### {model}, {width}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
