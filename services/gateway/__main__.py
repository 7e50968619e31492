"""`python -m services.gateway`: settings → parts → run."""

from __future__ import annotations

import asyncio
import signal

from services.common.logs import make_logger
from services.common.running import run_station
from services.common.tracing import Tracing
from services.common.variables import warn_of_unknown_variables
from services.gateway.gateway import Gateway
from services.gateway.server import run_gateway
from services.gateway.settings import GatewaySettings


async def serve(settings: GatewaySettings) -> int:
    """Runs the gateway until SIGTERM or SIGINT; returns the exit status."""
    log = make_logger(settings.station, settings.log_level, settings.log_format)
    warn_of_unknown_variables(GatewaySettings, log)
    tracing = Tracing(settings.station, settings.otlp_endpoint)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await run_gateway(Gateway(settings, tracing, log), stop)
    finally:
        tracing.close()
    return 0


if __name__ == "__main__":
    run_station(serve(GatewaySettings.parse()))
