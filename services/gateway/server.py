"""The HTTP server's life: listen, watch the stations, and on a stop drain before the port closes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from services.gateway.app import make_app
from services.gateway.gateway import Gateway

_KEEP_ALIVE = 75  # seconds that an idle connection stays open; longer than the clients' pools keep theirs
_CLOSE_GRACE = 2  # seconds for the last bytes after the drain


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: they close the port at once, but a gateway that drains answers 503."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def run_gateway(gateway: Gateway, stop: asyncio.Event) -> None:
    """Serves on the settings' host and port until `stop` is set, then drains and returns."""
    config = uvicorn.Config(
        make_app(gateway),
        host=gateway.settings.host,
        port=gateway.settings.port,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_CLOSE_GRACE,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(gateway.stations.watch())
        serving = group.create_task(server.serve())
        gateway.log.info("starting", port=gateway.settings.port)
        await stop.wait()
        await gateway.drain()
        server.should_exit = True
        await serving
        watching.cancel()
    gateway.log.info("stopped")
