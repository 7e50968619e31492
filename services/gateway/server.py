"""The HTTP server's life: listen, watch the stations, and on a stop drain before the port closes."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import cast

import uvicorn
from structlog.typing import FilteringBoundLogger

from services.gateway.app import make_app
from services.gateway.gateway import Gateway
from services.gateway.http_protocol import BoundedHttpProtocol, ConnectionLimits

_KEEP_ALIVE = 75  # seconds that an idle connection stays open; longer than the clients' pools keep theirs
_CLOSE_GRACE = 2  # seconds for the last bytes after the drain
_OTHER_DESCRIPTORS = 256  # than the clients' connections: stations, logs, listeners


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: they close the port at once, but a gateway that drains answers 503."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def abort_connections(self) -> None:
        """Ends what is still open: clients that do not read."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def _protocol(gateway: Gateway) -> type[asyncio.Protocol]:
    settings = gateway.settings
    limits = ConnectionLimits(
        connections=settings.max_connections,
        header_bytes=settings.max_header_bytes,
        header_timeout=settings.header_timeout,
    )
    refused = partial(gateway.metrics.answered, "other")
    # uvicorn only ever calls it
    return cast("type[asyncio.Protocol]", partial(BoundedHttpProtocol, limits=limits, refused=refused))


def raise_descriptor_limit(connections: int, log: FilteringBoundLogger) -> None:
    """Lets the process have a file descriptor for each of so many connections, as far as the system allows."""
    wanted = connections + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("too few file descriptors for --max-connections", needed=wanted, allowed=allowed)


async def run_gateway(gateway: Gateway, stop: asyncio.Event) -> None:
    """Serves on the settings' host and port until `stop` is set, then drains and returns."""
    raise_descriptor_limit(gateway.settings.max_connections, gateway.log)
    config = uvicorn.Config(
        make_app(gateway),
        host=gateway.settings.host,
        port=gateway.settings.port,
        http=_protocol(gateway),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=2 * _CLOSE_GRACE,  # never reached: the connections are gone by then
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(gateway.stations.watch())
        serving = group.create_task(server.serve())
        gateway.log.info("starting", port=gateway.settings.port)
        await stop.wait()
        await gateway.drain()
        server.should_exit = True
        await asyncio.wait([serving], timeout=_CLOSE_GRACE)
        server.abort_connections()
        await serving
        watching.cancel()
    gateway.log.info("stopped")
