"""A station's gRPC server: health, reflection, the read-out, metrics, and a graceful stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server
from structlog.typing import FilteringBoundLogger

from services.common.channels import MAX_MESSAGE_BYTES
from services.common.ports import listen_error
from services.common.running import CannotListen
from services.common.undecodable import RefuseUndecodable
from services.pb.postroad.v1 import debug_pb2, debug_pb2_grpc

_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a silent half of the traffic
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # clients ping every 1.5 s, on quiet streams too
    ("grpc.keepalive_permit_without_calls", 1),
    # The server's own pings find clients whose host vanished, so that their requests end.
    ("grpc.keepalive_time_ms", 1500),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
)
STOP_GRACE = 0.5  # seconds for calls that never end by themselves (health watches, frame streams), after the drain


class Drainable(Protocol):
    """What a station finishes before it stops: `LiveRequests`, of those that serve requests."""

    def __len__(self) -> int: ...

    async def drain(self, seconds: float) -> bool:
        """Takes on nothing new and waits at most `seconds` for what runs. True when nothing is left."""
        ...


class _DebugServicer(debug_pb2_grpc.DebugServicer):
    def __init__(self, read_out: Callable[[], debug_pb2.ReadOutResponse]) -> None:
        self._read_out = read_out

    async def ReadOut(
        self, request: debug_pb2.ReadOutRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> debug_pb2.ReadOutResponse:
        return self._read_out()


class StationServer:
    """The gRPC server of a station.

    `service` is its service's full name, for instance "postroad.v1.Tokenizer", or empty if it has none of its own;
    `more_services` are others that share its health. Register the servicer on `server`, then
    `start`, call `set_serving(True)` when a request could be served, and `run_until_stopped`.

    After `max_connection_age` seconds (None: never) a client is told to connect anew, upon which it asks the name
    again and finds replicas that came later. Calls that run keep the old connection until they end. Not for a station
    with a stream that has no end.
    """

    def __init__(
        self,
        service: str,
        address: str,
        read_out: Callable[[], debug_pb2.ReadOutResponse],
        log: FilteringBoundLogger,
        *,
        more_services: Sequence[str] = (),
        max_connection_age: float | None = None,
    ) -> None:
        self._services = tuple(name for name in (service, *more_services) if name)
        self._log = log
        self._health = HealthServicer()
        self._stop = asyncio.Event()
        self.server = grpc.aio.server(interceptors=[RefuseUndecodable()], options=_options(max_connection_age))
        self.port = _listen(self.server, address)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        debug_pb2_grpc.add_DebugServicer_to_server(_DebugServicer(read_out), self.server)
        names = (*self._services, "postroad.v1.Debug", "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)

    async def start(self) -> None:
        """Opens the port; the health is NOT_SERVING until `set_serving`."""
        await self.set_serving(False)
        await self.server.start()
        self._log.info("listening", port=self.port)

    async def set_serving(self, serving: bool) -> None:
        """Tells balancers and gateways whether a request would be served now."""
        states = health_pb2.HealthCheckResponse
        status = states.SERVING if serving else states.NOT_SERVING
        for name in ("", *self._services):
            await self._health.set(name, status)

    def request_stop(self) -> None:
        """What SIGTERM and SIGINT do: ends `run_until_stopped` after the drain."""
        self._stop.set()

    async def run_until_stopped(
        self, live: Drainable, drain_timeout: float, after_drain: Callable[[], None] = lambda: None
    ) -> None:
        """Waits for SIGTERM or SIGINT, then: not serving, drain for at most `drain_timeout` seconds, stop.

        `after_drain` may end what is left, before the remaining calls are cut.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        await self._stop.wait()
        self._log.info("draining", requests=len(live), at_most_s=drain_timeout)
        await self._health.enter_graceful_shutdown()
        if not await live.drain(drain_timeout):
            self._log.warning("drain timed out", requests=len(live))
        after_drain()
        await self.server.stop(STOP_GRACE)
        self._log.info("stopped")


def _options(max_connection_age: float | None) -> list[tuple[str, int]]:
    if max_connection_age is None:
        return list(_SERVER_OPTIONS)
    # Without a grace of its own: gRPC's default lets running calls end by themselves.
    return [*_SERVER_OPTIONS, ("grpc.max_connection_age_ms", int(max_connection_age * 1000))]


def _listen(server: grpc.aio.Server, address: str) -> int:
    """Binds host:port and returns the port. Raises CannotListen that says why not; gRPC's own error does not."""
    try:
        return server.add_insecure_port(address)
    except RuntimeError:
        host, _, port = address.rpartition(":")
        reason = listen_error(host.strip("[]"), int(port))
        raise CannotListen(f"cannot listen on {address}: {reason.strerror if reason else 'gRPC refused it'}") from None


def serve_metrics(registry: CollectorRegistry, host: str, port: int, log: FilteringBoundLogger) -> None:
    """Serves /metrics over HTTP from a thread of its own; port 0 means none. Raises CannotListen."""
    if port:
        # Of every histogram and counter another series, which says when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        try:
            start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise CannotListen(f"cannot serve metrics on {host}:{port}: {error.strerror}") from None
        log.info("metrics", port=port)
