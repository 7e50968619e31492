"""`make bench-pipe`: what the road itself costs, with the real services and the engine's scripted executor.

128 streams at 40 tokens/s each run through all four services. Printed is the CPU time per token of each service, for
the road as it is and for the same services with one message per token and hop (`--engine-transport calls --pace-ms 0`),
interleaved; and the time to first token of an idle road, which is all added time, since the scripted executor computes
nothing. Beside it stands its floor: three bare unary calls, one to each station behind the gateway, between the same
idle processes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import uvloop

from services.common.channels import open_channel
from services.pb.postroad.v1 import debug_pb2, debug_pb2_grpc
from tests.bench.sse_client import Answer, Connection, time_to_first_token
from tests.support.ports import free_ports

STATIONS = ("gateway", "tokenizer", "detokenizer", "engine")
VARIANTS = {"road": "", "message per token": "--engine-transport calls --pace-ms 0"}
IDLE_SECONDS = 0.005  # between two requests that have the road to themselves: the last one's reports are out
TICK = os.sysconf("SC_CLK_TCK")


class Road:
    """The launcher with the scripted executor, as a context manager."""

    def __init__(self, step_ms: float, detokenizer_flags: str) -> None:
        gateway, tokenizer, engine, detokenizer = free_ports(4)
        self.port = gateway
        self.behind_gateway = (tokenizer, detokenizer, engine)  # ports
        self._log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115
        self._command = [
            sys.executable, "-m", "services.launcher", "--port", str(gateway), "--tokenizer-port", str(tokenizer),
            "--engine-port", str(engine), "--detokenizer-port", str(detokenizer), "--no-metrics",
            f"--engine-flags=--executor scripted --step-ms {step_ms} --max-num-seqs 256",
            f"--detokenizer-flags={detokenizer_flags}",
        ]  # fmt: skip

    def __enter__(self) -> Road:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + 120
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(Path(self._log.name).read_text()[-3000:])
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def _ready(self) -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=2).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of each station's process so far, user and system, all threads."""
        used = {}
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            name = next((part.removeprefix("services.") for part in command if part.startswith("services.")), "")
            if name in STATIONS:
                fields = Path(f"/proc/{child}/stat").read_text().rsplit(") ", 1)[1].split()
                used[name] = (int(fields[11]) + int(fields[12])) / TICK
        return used


def body(number: int, max_tokens: int) -> dict[str, object]:
    """A chat request that no other one shares its prompt with."""
    text = f"Request {number}: tell me about the history of the postal service, in a few words."
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True}


async def load(road: Road, streams: int, max_tokens: int) -> list[Answer]:
    async def one(number: int) -> Answer:
        async with Connection("127.0.0.1", road.port) as connection:
            return await connection.stream_chat(body(number, max_tokens))

    return await asyncio.gather(*(one(number) for number in range(streams)))


def one_by_one(road: Road, count: int) -> list[float]:
    """The times to first token, in seconds, of requests that have the road to themselves."""
    times = []
    with socket.create_connection(("127.0.0.1", road.port)) as connection:
        for number in range(count):
            times.append(time_to_first_token(connection, body(number, 2)))
            time.sleep(IDLE_SECONDS)
    return times


async def bare_calls(road: Road, count: int) -> float:
    """Seconds that one unary call to each station behind the gateway takes, one after another: sum of the medians."""
    total = 0.0
    for port in road.behind_gateway:
        times = []
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = debug_pb2_grpc.DebugStub(channel)
            for _ in range(count):
                start = time.perf_counter()
                await stub.ReadOut(debug_pb2.ReadOutRequest())
                times.append(time.perf_counter() - start)
                await asyncio.sleep(IDLE_SECONDS)
        total += statistics.median(times)
    return total


def measure(step_ms: float, streams: int, max_tokens: int, flags: str) -> dict[str, float]:
    """Microseconds of CPU per token and service over one load, and the idle time to first token in milliseconds."""
    with Road(step_ms, flags) as road:
        asyncio.run(load(road, 8, 8))  # warm
        idle = one_by_one(road, 40)
        floor = uvloop.run(bare_calls(road, 40))
        before, start = road.cpu_seconds(), time.perf_counter()
        answers = asyncio.run(load(road, streams, max_tokens))
        wall, after = time.perf_counter() - start, road.cpu_seconds()
    failed = [a.error or "cut short" for a in answers if a.error or a.completion_tokens != max_tokens]
    if failed:
        raise RuntimeError(f"{len(failed)} of {streams} streams failed: {failed[0]}")
    tokens = streams * max_tokens
    result = {name: (after[name] - before[name]) / tokens * 1e6 for name in STATIONS}
    gaps = sorted(b - a for answer in answers for a, b in zip(answer.event_times, answer.event_times[1:], strict=False))
    return result | {
        "chain": sum(result.values()),
        "tokens_per_s": tokens / wall,
        "events_per_token": sum(len(a.event_times) for a in answers) / tokens,
        "idle_ttft_ms": statistics.median(idle) * 1e3,
        "floor_ttft_ms": floor * 1e3,
        "gap_p50_ms": gaps[len(gaps) // 2] * 1e3,
        "gap_p99_ms": gaps[int(len(gaps) * 0.99)] * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--rate", type=float, default=40.0, help="tokens per second and stream")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one load")
    parser.add_argument("--repeats", type=int, default=3, help="loads per variant; medians are printed")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for _ in range(args.repeats):
        for name, flags in VARIANTS.items():
            max_tokens = int(args.rate * args.seconds)
            runs[name].append(measure(1000 / args.rate, args.streams, max_tokens, flags))
            print(f"# {name}: " + ", ".join(f"{k} {v:.1f}" for k, v in runs[name][-1].items()), flush=True)
    medians = {name: {key: statistics.median(run[key] for run in rs) for key in rs[0]} for name, rs in runs.items()}
    print(f"\n{args.streams} streams x {args.rate:g} tokens/s, medians of {args.repeats}; CPU in us per token")
    print(f"{'':18}" + "".join(f"{key:>18}" for key in medians["road"]))
    for name, values in medians.items():
        print(f"{name:18}" + "".join(f"{value:18.1f}" for value in values.values()))
    ratio = medians["road"]["chain"] / medians["message per token"]["chain"]
    print(f"chain, road / message per token: {ratio:.2f}")
    idle, floor = medians["road"]["idle_ttft_ms"], medians["road"]["floor_ttft_ms"]
    print(f"idle time to first token, road / three bare calls: {idle / floor:.2f}")


if __name__ == "__main__":
    main()
