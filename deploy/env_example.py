"""Writes .env.example, every setting of docker-compose.yml and of the stations: `make env-example`."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from services.common.settings import SHARED_FIELDS, StationSettings  # noqa: E402
from services.detokenizer.settings import DetokenizerSettings  # noqa: E402
from services.engine.settings import EngineSettings  # noqa: E402
from services.gateway.settings import GatewaySettings  # noqa: E402
from services.tokenizer.settings import TokenizerSettings  # noqa: E402

STATIONS: tuple[type[StationSettings], ...] = (GatewaySettings, TokenizerSettings, DetokenizerSettings, EngineSettings)
# Not to be changed in a container: where the stations listen, and where they find each other.
FIXED = frozenset(
    {
        "POSTROAD_HOST",
        *(f"POSTROAD_{station.station.upper()}_{name}" for station in STATIONS for name in ("PORT", "METRICS_PORT")),
        "POSTROAD_ENGINE_RANK",
        "POSTROAD_ENGINE_LEADER",
        "POSTROAD_TOKENIZER_ENGINE",
        "POSTROAD_DETOKENIZER_ENGINE",
        "POSTROAD_GATEWAY_TOKENIZER",
        "POSTROAD_GATEWAY_DETOKENIZER",
        "POSTROAD_GATEWAY_API_KEYS_FILE",
    }
)
# What docker-compose.yml sets where the variable is unset, in place of the station's own default.
COMPOSE_DEFAULTS = dict(re.findall(r"\$\{(\w+):-([^}]+)\}", (ROOT / "docker-compose.yml").read_text()))
HEAD = """\
# Settings of `docker compose up`. Copy to .env, take the # away from what you change, and run it again.
# An empty value counts as unset. Made by `make env-example`; docs/settings.md says more about each.

# ---- docker-compose.yml ----

# Where the gateway is published: [address:]port, or a range of ports for --scale gateway=2.
#POSTROAD_PUBLISH=127.0.0.1:8000
# A folder with models of your own, seen by the engine as /models: POSTROAD_ENGINE_MODEL=/models/name
#POSTROAD_MODELS_DIR=./models
# A TOML file with the API keys that the gateway lets in; without one, everybody may use it.
#POSTROAD_API_KEYS_FILE=/dev/null
# A file with a token for the Hugging Face Hub.
#POSTROAD_HF_TOKEN_FILE=/dev/null
# Memory limits. The engine takes its weights and, unless told otherwise, a quarter of what is then left.
#POSTROAD_ENGINE_MEMORY=8g
#POSTROAD_TOKENIZER_MEMORY=3g
#POSTROAD_DETOKENIZER_MEMORY=1g
#POSTROAD_GATEWAY_MEMORY=1g
# Limits of processor time, in cores; 0: none. The engine starts as many threads as it has whole cores.
#POSTROAD_ENGINE_CPUS=0
#POSTROAD_TOKENIZER_CPUS=0
#POSTROAD_DETOKENIZER_CPUS=0
#POSTROAD_GATEWAY_CPUS=0
# What is started beside the four stations, with commas: tp2 (the second rank of an engine with
# POSTROAD_ENGINE_TENSOR_PARALLEL_SIZE=2), observability.
#COMPOSE_PROFILES=
# Names of the images: PREFIX-gateway:TAG and so on.
#POSTROAD_IMAGE_PREFIX=postroad
#POSTROAD_IMAGE_TAG=latest
# For the build: the base image, and where torch's CPU build comes from when pip's own sources do not have it.
#BASE_IMAGE=python:3.11-slim-bookworm
#TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
# What the images' labels call the state of the code, for instance the commit.
#REVISION=
# The engine on a GPU, from an image of its own; the base of that image, where torch for its version of CUDA comes from,
# and where flashinfer's built kernels do: needed for the build, flashinfer's installation guide names it.
#COMPOSE_FILE=docker-compose.yml:docker-compose.gpu.yml
#CUDA_IMAGE=nvidia/cuda:13.0.1-runtime-ubuntu24.04
#TORCH_CUDA_INDEX_URL=https://download.pytorch.org/whl/cu130
#FLASHINFER_INDEX_URL=
# With --profile observability: where Prometheus and Grafana are published.
#POSTROAD_PROMETHEUS_PUBLISH=127.0.0.1:9090
#POSTROAD_GRAFANA_PUBLISH=127.0.0.1:3000
"""


def choices(field: FieldInfo) -> str:
    """The values of a choice, in words."""
    if get_origin(field.annotation) is not Literal:
        return ""
    return " One of " + ", ".join(str(value) for value in get_args(field.annotation)) + "."


def entry(prefix: str, name: str, field: FieldInfo) -> str:
    """A setting's comment and its line, with the default in containers as the value."""
    variable = prefix + name.upper()
    if variable in FIXED:
        return ""
    description, default = field.description or "", "" if field.default is None else f"{field.default}"
    if variable in COMPOSE_DEFAULTS:
        description, default = re.sub(r" Default: [^.]*\.$", "", description), COMPOSE_DEFAULTS[variable]
    comment = textwrap.wrap(description + choices(field), 118)
    return "".join(f"# {line}\n" for line in comment) + f"#{variable}={default}\n"


def env_example() -> str:
    """The whole file."""
    parts = [HEAD, "\n# ---- all stations ----\n\n"]
    shared = StationSettings.model_fields
    parts += [entry("POSTROAD_", name, field) for name, field in shared.items()]
    for station in STATIONS:
        parts.append(f"\n# ---- {station.station} ----\n\n")
        prefix = f"POSTROAD_{station.station.upper()}_"
        own = {name: field for name, field in station.model_fields.items() if name not in SHARED_FIELDS}
        parts += [entry(prefix, name, field) for name, field in own.items()]
    return "".join(parts)


if __name__ == "__main__":
    (ROOT / ".env.example").write_text(env_example())
