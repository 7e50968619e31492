"""`python -m services.engine`: one engine process, or one rank of an engine that has several."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from prometheus_client import CollectorRegistry

from services.common.logs import make_logger
from services.common.running import run_station
from services.common.servers import serve_metrics
from services.common.variables import warn_of_unknown_variables
from services.engine.ranks.station import RankStation
from services.engine.settings import EngineSettings
from services.engine.startup import identify_rank, load_engine, load_rank
from services.engine.station import EngineStation


async def serve(settings: EngineSettings) -> int:
    """Runs the engine until it is told to stop; returns the exit status, 1 if it failed."""
    log = make_logger("engine", settings.log_level, settings.log_format)
    warn_of_unknown_variables(EngineSettings, log)
    registry = CollectorRegistry()
    station: EngineStation | RankStation
    if settings.rank == 0:
        station = EngineStation(
            settings, lambda publish, link: load_engine(settings, publish, log, link), registry, log
        )
    else:
        station = RankStation(
            settings, lambda: identify_rank(settings), lambda: load_rank(settings, log), registry, log
        )
    serve_metrics(registry, settings.host, settings.metrics_port, log)
    await station.start()
    ended = await station.run_until_stopped()
    status = 1 if station.failed else 0
    if not ended:
        # The interpreter's own end would pull memory away from under a thread that still computes.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    run_station(serve(EngineSettings.parse()))
