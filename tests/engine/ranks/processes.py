"""Ranks as processes of their own, and a client of rank 0."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from services.common.channels import open_channel
from services.common.errors import PostroadError, from_rpc
from services.pb.postroad.v1 import common_pb2, debug_pb2, debug_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.support.polling import until
from tests.support.ports import free_ports
from tests.support.processes import Program


class RankProcess:
    """`python -m services.engine` as one rank of a group on loopback."""

    def __init__(self, rank: int, size: int, leader_port: int, *flags: str) -> None:
        port = leader_port if rank == 0 else 0
        (self.metrics_port,) = free_ports(1)
        command = [sys.executable, "-m", "services.engine", f"--port={port}", f"--metrics-port={self.metrics_port}"]
        command += [f"--rank={rank}", f"--tensor-parallel-size={size}", "--threads=1", "--dtype=float32"]
        command += ["--drain-timeout=5", *flags]
        if rank > 0:
            command.append(f"--leader=127.0.0.1:{leader_port}")
        self.rank = rank
        self.program = Program(command)

    async def event(self, name: str) -> dict[str, Any]:
        """The next log line of that event."""
        line = await asyncio.to_thread(
            self.program.wait_for_line, lambda line: f'"event": "{name}"' in line, f"rank {self.rank}: {name}"
        )
        return dict(json.loads(line))

    async def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        async with httpx.AsyncClient() as http:
            text = (await http.get(f"http://127.0.0.1:{self.metrics_port}/metrics")).text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return next(sample.value for sample in samples if sample.name == name)

    def kill(self) -> None:
        self.program.send(signal.SIGKILL)


class LeaderClient:
    """What a client of rank 0 sees."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._health = health_pb2_grpc.HealthStub(channel)
        self._debug = debug_pb2_grpc.DebugStub(channel)
        self._engine = engine_pb2_grpc.EngineStub(channel)

    async def is_serving(self) -> bool:
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(service="postroad.v1.Engine"))
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def until_serving(self) -> None:
        async with asyncio.timeout(60):
            while not await self.is_serving():  # noqa: ASYNC110 another process
                await asyncio.sleep(0.02)

    async def until_not_serving(self) -> None:
        async def is_down() -> bool:
            return not await self.is_serving()

        await until(is_down)

    async def read_out(self) -> debug_pb2.ReadOutResponse:
        answer: debug_pb2.ReadOutResponse = await self._debug.ReadOut(debug_pb2.ReadOutRequest())
        return answer

    async def generate(
        self, prompt: list[int], max_tokens: int, first_token: asyncio.Event | None = None
    ) -> list[int] | PostroadError:
        """Greedy tokens, or the error that the request ended with."""
        request = engine_pb2.GenerateRequest(
            prompt_ids=prompt,
            sampling=common_pb2.SamplingParams(temperature=0.0),
            stop=common_pb2.StopParams(max_tokens=max_tokens, ignore_eos=True),
        )
        tokens: list[int] = []
        try:
            async for message in self._engine.Generate(request):
                tokens += message.token_ids
                if tokens and first_token is not None:
                    first_token.set()
        except grpc.aio.AioRpcError as error:
            return from_rpc(error)
        return tokens


@asynccontextmanager
async def rank_group(size: int, model: Path, *flags: str) -> AsyncIterator[tuple[list[RankProcess], LeaderClient]]:
    """A group whose last rank is started first. It is not waited for."""
    (port,) = free_ports(1)
    flags = (f"--model={model}", *flags)
    ranks = [RankProcess(rank, size, port, *flags) for rank in reversed(range(size))][::-1]
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield ranks, LeaderClient(channel)
    finally:
        for rank in ranks:
            rank.program.__exit__()
