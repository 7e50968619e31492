"""Starts the tokenizer: `python -m services.tokenizer`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.common.logs import make_logger
from services.common.running import run_station
from services.common.servers import serve_metrics
from services.common.variables import warn_of_unknown_variables
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.station import TokenizerStation


async def serve(settings: TokenizerSettings) -> int:
    """Runs the tokenizer until it is told to stop; returns the exit status, 1 if it failed."""
    log = make_logger(settings.station, settings.log_level, settings.log_format)
    warn_of_unknown_variables(TokenizerSettings, log)
    registry = CollectorRegistry()
    station = TokenizerStation(settings, registry, log)
    serve_metrics(registry, settings.host, settings.metrics_port, log)
    await station.start()
    return 0 if await station.run_until_stopped() else 1


if __name__ == "__main__":
    run_station(serve(TokenizerSettings.parse()))
