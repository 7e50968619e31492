"""Starts the detokenizer: `python -m services.detokenizer`."""

from __future__ import annotations

import uvloop
from prometheus_client import CollectorRegistry

from services.common.logs import make_logger
from services.common.servers import serve_metrics
from services.detokenizer.settings import DetokenizerSettings
from services.detokenizer.station import DetokenizerStation


async def serve(settings: DetokenizerSettings) -> None:
    """Runs the detokenizer until it is told to stop."""
    log = make_logger(settings.station, settings.log_level, settings.log_format)
    registry = CollectorRegistry()
    station = DetokenizerStation(settings, registry, log)
    await station.start()
    serve_metrics(registry, settings.host, settings.metrics_port, log)
    await station.run_until_stopped()


if __name__ == "__main__":
    uvloop.run(serve(DetokenizerSettings.parse()))
