"""POSTROAD_… variables in the environment that nothing reads, most likely misspelt."""

from __future__ import annotations

import os
from collections.abc import Iterator

from structlog.typing import FilteringBoundLogger

from services.common.settings import SHARED_PREFIX, StationSettings
from services.common.spelling import closest

STATIONS = ("gateway", "tokenizer", "detokenizer", "engine", "launcher")
# Those of docker-compose.yml itself: by `.env` they reach the stations, too.
COMPOSE_VARIABLES = frozenset(
    SHARED_PREFIX + name
    for name in (
        "PUBLISH", "PROMETHEUS_PUBLISH", "GRAFANA_PUBLISH",
        "IMAGE_PREFIX", "IMAGE_TAG",
        "MODELS_DIR", "API_KEYS_FILE", "HF_TOKEN_FILE",
        "GATEWAY_MEMORY", "TOKENIZER_MEMORY", "DETOKENIZER_MEMORY", "ENGINE_MEMORY",
        "GATEWAY_CPUS", "TOKENIZER_CPUS", "DETOKENIZER_CPUS", "ENGINE_CPUS",
    )
)  # fmt: skip


def unknown_variables(*stations: type[StationSettings]) -> Iterator[tuple[str, str]]:
    """Variables that are set, and that neither these stations read nor, by their name, another one; each with the one
    that was probably meant, or an empty string."""
    known = frozenset[str]().union(*(settings.variables() for settings in stations))
    names = {settings.station for settings in stations}
    of_others = tuple(f"{SHARED_PREFIX}{name.upper()}_" for name in STATIONS if name not in names)
    for name in sorted(name for name, value in os.environ.items() if value):
        variable = name.upper()  # they are read in any case
        if not variable.startswith(SHARED_PREFIX) or variable.startswith(of_others):
            continue
        if variable not in known | COMPOSE_VARIABLES:
            yield name, _closest(variable, known)


def warn_of_unknown_variables(settings: type[StationSettings], log: FilteringBoundLogger) -> None:
    """A line for each of them."""
    for name, meant in unknown_variables(settings):
        log.warning("unknown variable", variable=name, **({"did_you_mean": meant} if meant else {}))


def _closest(variable: str, known: frozenset[str]) -> str:
    """Compared without the prefix, which all have."""
    names = [name.removeprefix(SHARED_PREFIX) for name in sorted(known)]
    meant = closest(variable.removeprefix(SHARED_PREFIX), names)
    return SHARED_PREFIX + meant if meant else ""
