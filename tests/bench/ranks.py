"""`python -m tests.bench.ranks`: what the stream of step plans costs per step, between rank 0 and one other rank.

A real rank 0 (its gRPC server, leader and link) and a real rank as a process of its own; only the model is left out: a
rank notes when it would begin a step. Both are on one machine, whose monotonic clock they share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence

import structlog
from prometheus_client import CollectorRegistry

from services.common.logs import make_logger
from services.common.servers import StationServer
from services.engine.plan import SamplingJob, SamplingParams, SequencePlan, StepPlan
from services.engine.ranks.identity import RankIdentity
from services.engine.ranks.leader import RankLeader
from services.engine.ranks.link import RankLink
from services.engine.ranks.loaded import LoadedRank
from services.engine.ranks.metrics import RankMetrics
from services.engine.ranks.servicer import SERVICE, RanksServicer
from services.engine.ranks.station import RankStation
from services.engine.ranks.wire import plan_from
from services.engine.settings import EngineSettings
from services.pb.postroad.v1 import debug_pb2, ranks_pb2, ranks_pb2_grpc

IDENTITY = RankIdentity("bench", 2, "", "float32", 16, 0, "cpu", "none", "float32")
BATCHES = (1, 8, 32, 128)  # sequences that decode
WARM_UP = 50  # steps


class NotingFollower:
    """Takes plans up as a rank does, and computes nothing."""

    is_alone = False

    def __init__(self) -> None:
        self.begun: dict[int, float] = {}  # by number of the plan

    def form(self, _message: ranks_pb2.FormGroup) -> None:
        pass

    def execute(self, message: ranks_pb2.RankPlan) -> None:
        plan = plan_from(message)
        self.begun[plan.number] = time.perf_counter()

    def leave(self) -> None:
        pass


async def follow(leader: str) -> None:
    """The other rank's process: prints when each step began, in the end."""
    follower = NotingFollower()
    # Told to stop, it goes on until there has been no plan for a second: the last one may be on its way.
    settings = EngineSettings(port=0, metrics_port=0, drain_timeout=10, tensor_parallel_size=2, rank=1, leader=leader)
    station = RankStation(
        settings,
        lambda: IDENTITY,
        lambda: (follower, LoadedRank(1)),  # type: ignore[arg-type,return-value]
        CollectorRegistry(),
        make_logger("engine", "error", "json"),
    )
    await station.start()
    await station.run_until_stopped()
    print(json.dumps(follower.begun), flush=True)


def decode_plan(number: int, batch: int, context: int) -> StepPlan:
    job = SamplingJob(SamplingParams(), (), ())
    pages = [random.randrange(100_000) for _ in range(context // 16)]
    return StepPlan(number, [SequencePlan(i, [11], context - 1, pages, [job]) for i in range(batch)])


def lead(link: RankLink, steps: int, interval: float, context: int) -> dict[int, list[tuple[int, float, float]]]:
    """The engine thread's part: (number, when the plan was made, seconds until it was handed over), by batch."""
    link.identified(IDENTITY)
    link.own_part_loaded(LoadedRank(1), ())
    formation = link.wait_for_formation()
    link.store_open(formation.epoch, 1)
    link.group_formed(formation.epoch)
    sent: dict[int, list[tuple[int, float, float]]] = {}
    number = 0
    for batch in BATCHES:
        sent[batch] = []
        for step in range(WARM_UP + steps):
            number += 1
            plan = decode_plan(number, batch, context)
            time.sleep(interval)
            made = time.perf_counter()
            link.send_plan(plan)
            if step >= WARM_UP:
                sent[batch].append((number, made, time.perf_counter() - made))
    return sent


async def measure(steps: int, interval: float, context: int) -> None:
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[lambda *_: ""])
    leader = RankLeader(2, RankMetrics(CollectorRegistry()), log)
    server = StationServer(SERVICE, "127.0.0.1:0", debug_pb2.ReadOutResponse, log)
    ranks_pb2_grpc.add_RanksServicer_to_server(RanksServicer(leader, log), server.server)
    await server.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.ranks", f"--follow=127.0.0.1:{server.port}", stdout=asyncio.subprocess.PIPE
    )
    sent = await asyncio.to_thread(lead, leader.link, steps, interval, context)
    process.send_signal(signal.SIGTERM)
    output, _ = await process.communicate()
    begun = {int(number): moment for number, moment in json.loads(output).items()}
    await server.server.stop(0)
    print("milliseconds per step       in rank 0's thread       until the rank begins")
    print("sequences                      p50        p99              p50        p99")
    for batch, plans in sent.items():
        handed = [seconds * 1e3 for _, _, seconds in plans]
        whole = [(begun[number] - made) * 1e3 for number, made, _ in plans]
        print(f"{batch:>9}                    {row(handed)}        {row(whole)}")


def row(values: Sequence[float]) -> str:
    percentiles = statistics.quantiles(values, n=100)
    return f"{percentiles[49]:>7.3f}    {percentiles[98]:>7.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="measured steps of each batch")
    parser.add_argument("--interval", type=float, default=0.01, help="seconds between two steps")
    parser.add_argument("--context", type=int, default=1024, help="tokens of each sequence")
    parser.add_argument("--follow", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    asyncio.run(follow(args.follow) if args.follow else measure(args.steps, args.interval, args.context))


if __name__ == "__main__":
    main()
