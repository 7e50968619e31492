"""The parts that the endpoints share, wired once."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, disable_created_metrics
from structlog.typing import FilteringBoundLogger

from services.common.errors import Draining
from services.common.live_requests import LiveRequests
from services.common.tracing import Tracing
from services.gateway.api_keys import ApiKeys
from services.gateway.errors import model_not_found
from services.gateway.metrics import GatewayMetrics
from services.gateway.record import Reporter
from services.gateway.replicas import ModelCard, Stations
from services.gateway.request_scope import RequestScopes
from services.gateway.road import Road
from services.gateway.settings import GatewaySettings
from services.gateway.waiting_room import WaitingRoom

DEFAULT_MODEL = "default"  # names whatever is served


class Gateway:
    """One gateway process."""

    def __init__(self, settings: GatewaySettings, tracing: Tracing, log: FilteringBoundLogger) -> None:
        self.settings = settings
        self.tracing = tracing
        self.log = log
        self.live = LiveRequests()
        self.scopes = RequestScopes()
        # Of every histogram and counter another series, which says when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.metrics = GatewayMetrics(self.registry, self.live.__len__)
        self.reporter = Reporter(log, self.metrics)
        self.stations = Stations(settings.tokenizer, settings.detokenizer, settings.engine_addresses, log)
        self.waiting = WaitingRoom(settings.max_waiting)
        self.road = Road(self.stations, settings.retry_wait, self.waiting, log)
        self.api_keys = None if settings.api_keys_file is None else ApiKeys(settings.api_keys_file, log)
        self.draining = False

    async def model(self, name: str | None, until: float) -> ModelCard:
        """The served model, when `name` means it; ApiError 404 otherwise.

        When no engine was ever seen, waits for one until `until` (time.monotonic()), then raises NotReady.
        """
        card = self.stations.engines.card
        if card is None:
            with self.waiting.place():
                await self.stations.engines.choose(until)
            card = self.stations.engines.card
            assert card is not None, "a serving engine has a card"
        if name not in (None, "", DEFAULT_MODEL, card.name):
            raise model_not_found(str(name), card.name)
        return card

    def read_out(self) -> dict[str, dict[str, int]]:
        """What the gateway holds at this moment; every figure of `requests` is 0 when it is idle."""
        requests = {
            "live_requests": len(self.live),
            "request_scopes": len(self.scopes),
            "engine_requests": self.stations.engines.in_flight,
            "waiting": len(self.waiting),
        }
        return {"requests": requests, "counters": {}}

    async def drain(self) -> None:
        """Refuses new requests, lets running ones finish, and ends those that take longer than --drain-timeout."""
        self.draining = True
        self.log.info("draining", requests=len(self.live), at_most_s=self.settings.drain_timeout)
        if not await self.live.drain(self.settings.drain_timeout):
            self.log.warning("drain timed out", requests=len(self.live))
            self.scopes.end_all(Draining("the gateway stops; try again"))
