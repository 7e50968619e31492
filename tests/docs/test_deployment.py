"""docs/deployment.md: its commands are taken by the settings classes, its ports and services are those of the code."""

from __future__ import annotations

import re
import shlex

import pytest

from services.common.settings import StationSettings
from services.detokenizer.settings import DetokenizerSettings
from services.detokenizer.station import SERVICE as DETOKENIZER
from services.engine.settings import EngineSettings
from services.engine.station import SERVICE as ENGINE
from services.gateway.settings import GatewaySettings
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.station import SERVICE as TOKENIZER
from tests.docs.pages import DOCS, codes, table

PAGE = "deployment.md"
SETTINGS: dict[str, type[StationSettings]] = {
    settings.station: settings for settings in (GatewaySettings, TokenizerSettings, EngineSettings, DetokenizerSettings)
}
COMMANDS = re.findall(r"^\.venv/bin/python -m services\.(\w+) (.*)$", (DOCS / PAGE).read_text(), flags=re.M)


def test_every_station_is_started() -> None:
    assert {station for station, _ in COMMANDS} == set(SETTINGS)


@pytest.mark.parametrize(("station", "flags"), COMMANDS)
def test_the_flags_exist(station: str, flags: str) -> None:
    SETTINGS[station].parse(shlex.split(flags))


def test_the_ports_are_the_defaults() -> None:
    for row in table(PAGE, "Ports"):
        default = SETTINGS[row["station"]].parse([])
        metrics = getattr(default, "metrics_port", default.port)  # type: ignore[attr-defined]
        assert row["serves"].startswith(f"{default.port},")  # type: ignore[attr-defined]
        assert row["metrics"].startswith(str(metrics))
        assert ("--metrics-port" in codes(row["flags"])) == hasattr(default, "metrics_port")


def test_the_services_that_are_probed() -> None:
    named = {row["station"]: codes(row["would it serve?"])[-1] for row in table(PAGE, "Probes")}
    assert named == {"gateway": "GET /ready", "tokenizer": TOKENIZER, "engine": ENGINE, "detokenizer": DETOKENIZER}
