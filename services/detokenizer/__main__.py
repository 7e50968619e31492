"""Starts the detokenizer: `python -m services.detokenizer`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.common.logs import make_logger
from services.common.running import run_station
from services.common.servers import serve_metrics
from services.common.variables import warn_of_unknown_variables
from services.detokenizer.settings import DetokenizerSettings
from services.detokenizer.station import DetokenizerStation


async def serve(settings: DetokenizerSettings) -> int:
    """Runs the detokenizer until it is told to stop; returns the exit status, 1 if it failed."""
    log = make_logger(settings.station, settings.log_level, settings.log_format)
    warn_of_unknown_variables(DetokenizerSettings, log)
    registry = CollectorRegistry()
    station = DetokenizerStation(settings, registry, log)
    serve_metrics(registry, settings.host, settings.metrics_port, log)
    await station.start()
    return 0 if await station.run_until_stopped() else 1


if __name__ == "__main__":
    run_station(serve(DetokenizerSettings.parse()))
