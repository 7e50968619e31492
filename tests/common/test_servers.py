"""A station's life: not serving, serving, drained, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry, Counter

from services.common.errors import Draining, NotReady, Unavailable, from_rpc, rpc_errors
from services.common.live_requests import LiveRequests
from services.common.running import CannotListen
from services.common.servers import serve_metrics
from services.pb.postroad.v1 import tokenizer_pb2
from tests.common.serving import SERVICE, Served, captured_log, served, who_answers
from tests.support.polling import WAIT_SECONDS, until
from tests.support.ports import free_ports


class HeldRequests:
    """A handler whose requests are live until they are released."""

    def __init__(self) -> None:
        self.live = LiveRequests()
        self.release = asyncio.Event()
        self.ended = 0
        self._log, self.logs = captured_log()

    async def __call__(self, request: Any, context: Any) -> tokenizer_pb2.EncodeResponse:
        async with rpc_errors(context, self._log, "req-1"):
            with self.live.enter():
                try:
                    await self.release.wait()
                finally:
                    self.ended += 1
        return tokenizer_pb2.EncodeResponse(elapsed_us=7)


async def until_health(server: Served, state: str) -> None:
    async def is_reached() -> bool:
        return await server.health() == state

    await until(is_reached)


async def finished(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        await task


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_fieldbug_28_health_is_what_the_station_says(service: str) -> None:
    async with served(serving=False) as server:
        assert await server.health(service) == "NOT_SERVING"
        await server.server.set_serving(True)
        assert await server.health(service) == "SERVING"
        await server.server.set_serving(False)
        assert await server.health(service) == "NOT_SERVING"


async def test_fieldbug_29_a_quiet_stream_outlives_the_pings() -> None:
    """Three pings too close to one another, at 1.5 s each, end a connection with too_many_pings."""
    async with served() as server:
        watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(quiet := asyncio.ensure_future(watch.read())), 6.5)
        await server.server.set_serving(False)
        assert (await quiet).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_stop_lets_running_calls_finish_and_refuses_new_ones() -> None:
    held = HeldRequests()
    drained: list[int] = []
    async with served(held) as server:
        running = asyncio.create_task(
            server.server.run_until_stopped(held.live, WAIT_SECONDS, lambda: drained.append(held.ended))
        )
        call = asyncio.create_task(server.encode())
        await until(lambda: len(held.live) == 1)
        server.server.request_stop()
        await until_health(server, "NOT_SERVING")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await server.encode()
        assert type(from_rpc(raised.value)) is Draining
        assert not running.done()
        assert drained == []
        held.release.set()
        assert (await call).elapsed_us == 7
        await finished(running)
        assert drained == [1]
        assert server.events() == ["listening", "draining", "stopped"]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await server.encode()
        assert type(from_rpc(raised.value)) is Unavailable


async def test_a_station_that_stops_never_serves_again() -> None:
    """The files of a restarted engine may arrive in the midst of a drain."""
    held = HeldRequests()
    async with served(held) as server:
        running = asyncio.create_task(server.server.run_until_stopped(held.live, WAIT_SECONDS))
        call = asyncio.create_task(server.encode())
        await until(lambda: len(held.live) == 1)
        server.server.request_stop()
        await until_health(server, "NOT_SERVING")
        await server.server.set_serving(True)
        assert await server.health() == "NOT_SERVING"
        held.release.set()
        await call
        await finished(running)


async def test_what_outlasts_the_drain_is_cut() -> None:
    held = HeldRequests()
    running_at_the_end: list[int] = []
    async with served(held) as server:
        running = asyncio.create_task(
            server.server.run_until_stopped(held.live, 0, lambda: running_at_the_end.append(len(held.live)))
        )
        call = asyncio.create_task(server.encode())
        await until(lambda: len(held.live) == 1)
        server.server.request_stop()
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        await finished(running)
        assert running_at_the_end == [1]
        assert server.events() == ["listening", "draining", "drain timed out", "stopped"]
        await until(lambda: (len(held.live), held.ended) == (0, 1))


async def test_what_ends_the_rest_runs_before_calls_are_cut() -> None:
    held = HeldRequests()
    async with served(held) as server:
        running = asyncio.create_task(server.server.run_until_stopped(held.live, 0, held.release.set))
        call = asyncio.create_task(server.encode())
        await until(lambda: len(held.live) == 1)
        server.server.request_stop()
        assert (await call).elapsed_us == 7
        await finished(running)


async def test_an_idle_station_without_a_drain_stops_without_complaint() -> None:
    async with served() as server:
        server.server.request_stop()
        await finished(asyncio.create_task(server.server.run_until_stopped(LiveRequests(), 0)))
        assert server.events() == ["listening", "draining", "stopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_stop_a_station(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    async with served() as server:
        running = asyncio.create_task(server.server.run_until_stopped(LiveRequests(), 0))
        try:
            await until(lambda: signal.getsignal(number) != before)
            os.kill(os.getpid(), number)
            await finished(running)
        finally:
            for one in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(one)


@pytest.mark.parametrize("station", ["tokenizer", "detokenizer", "engine"])
@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
def test_a_station_that_cannot_listen_says_so_in_one_sentence(station: str, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        command = [sys.executable, "-m", f"services.{station}", "--metrics-port=0", "--port=0", f"{flag}={port}"]
        environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    what = "listen" if flag == "--port" else "serve metrics"
    assert ended.stderr == f"cannot {what} on 127.0.0.1:{port}: Address already in use\n"


async def test_a_port_in_use_is_an_error_that_says_so() -> None:
    async with served(name="first") as first:
        with pytest.raises(CannotListen, match=f":{first.server.port}: Address already in use"):
            async with served(name="second", address=first.address):
                pytest.fail("a second server shares the port")
        assert await who_answers(first.channel) == "first"


async def test_reflection_knows_every_service() -> None:
    async with served() as server:
        ask = reflection_pb2_grpc.ServerReflectionStub(server.channel).ServerReflectionInfo
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        services, files = [response async for response in ask(iter(requests))]
    assert {service.name for service in services.list_services_response.service} == {
        SERVICE,
        "postroad.v1.Debug",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert any(b"RenderChat" in file for file in files.file_descriptor_response.file_descriptor_proto)


async def test_the_read_out_is_of_this_moment() -> None:
    async with served(name="counted") as server:
        assert await who_answers(server.channel) == "counted"


async def test_a_status_of_ours_crosses_the_server() -> None:
    log, _ = captured_log()

    async def not_ready(request: Any, context: Any) -> Any:
        async with rpc_errors(context, log, "req-1"):
            raise NotReady("no files yet")

    async with served(not_ready) as server:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await server.encode()
    assert type(from_rpc(raised.value)) is NotReady


def test_metrics_over_http() -> None:
    registry = CollectorRegistry()
    Counter("postroad_letters", "Letters.", registry=registry).inc(3)
    (port,) = free_ports(1)
    log, logs = captured_log()
    serve_metrics(registry, "127.0.0.1", port, log)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS) as response:
        assert b"postroad_letters_total 3.0" in response.read().splitlines()
    assert [entry["port"] for entry in logs] == [port]
    with pytest.raises(CannotListen, match=f":{port}: Address already in use"):
        serve_metrics(registry, "127.0.0.1", port, log)


def test_metrics_port_0_is_none() -> None:
    log, logs = captured_log()
    serve_metrics(CollectorRegistry(), "127.0.0.1", 0, log)
    assert logs == []
