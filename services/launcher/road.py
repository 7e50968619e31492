"""The services of a local road: their command lines and ports, made from the launcher's settings."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass

from services.detokenizer.settings import DetokenizerSettings
from services.engine.settings import EngineSettings
from services.gateway.settings import GatewaySettings
from services.launcher.ports import LOOPBACK, PortUse
from services.launcher.process import ServiceSpec
from services.launcher.settings import LauncherSettings
from services.tokenizer.settings import TokenizerSettings


@dataclass(frozen=True, slots=True)
class Road:
    """What to start, in this order, on which ports, where clients find it, and whether they need an API key."""

    services: tuple[ServiceSpec, ...]
    ports: tuple[PortUse, ...]
    url: str
    asks_for_keys: bool


def plan_road(settings: LauncherSettings) -> Road:
    """The road of these settings. Ends the process, with 2 and a message, where a service's flags are wrong."""
    tokenizer = f"{LOOPBACK}:{settings.tokenizer_port}"
    engine = f"{LOOPBACK}:{settings.engine_port}"
    detokenizer = f"{LOOPBACK}:{settings.detokenizer_port}"
    engine_flags = (*(("--model", settings.model) if settings.model else ()), *shlex.split(settings.engine_flags))
    tokenizer_flags = shlex.split(settings.tokenizer_flags)
    detokenizer_flags = shlex.split(settings.detokenizer_flags)
    gateway_flags = shlex.split(settings.gateway_flags)
    num_ranks = EngineSettings.parse(list(engine_flags)).tensor_parallel_size
    TokenizerSettings.parse(tokenizer_flags)
    DetokenizerSettings.parse(detokenizer_flags)
    asks_for_keys = GatewaySettings.parse(gateway_flags).api_keys_file is not None
    metrics = {
        "engine": settings.engine_metrics_port,
        "tokenizer": settings.tokenizer_metrics_port,
        "detokenizer": settings.detokenizer_metrics_port,
    }

    def service(name: str, host: str, port: int, *flags: str) -> ServiceSpec:
        where = ["--host", host, "--port", str(port)]
        if name in metrics:
            where += ["--metrics-port", str(metrics[name] if settings.metrics else 0)]
        argv = (sys.executable, "-m", f"services.{name}", *where, *_shared_flags(settings), *flags)
        return ServiceSpec(name, argv, entrance=name == "gateway")

    def rank(number: int) -> ServiceSpec:
        """One of the engine's ranks beside rank 0, which is the engine."""
        where = ("--host", LOOPBACK, "--port", "0", "--metrics-port", "0")
        place = ("--rank", str(number), "--leader", engine)
        command = (sys.executable, "-m", "services.engine")
        return ServiceSpec(f"rank-{number}", (*command, *where, *_shared_flags(settings), *engine_flags, *place))

    return Road(
        services=(
            service("engine", LOOPBACK, settings.engine_port, *engine_flags),
            *(rank(number) for number in range(1, num_ranks)),
            service("tokenizer", LOOPBACK, settings.tokenizer_port, "--engine", engine, *tokenizer_flags),
            service("detokenizer", LOOPBACK, settings.detokenizer_port, "--engine", engine, *detokenizer_flags),
            service(
                "gateway", settings.host, settings.port,
                "--tokenizer", tokenizer, "--detokenizer", detokenizer, "--engines", engine,
                *gateway_flags,
            ),
        ),
        ports=(
            PortUse("gateway", "--port", settings.port, settings.host),
            PortUse("engine", "--engine-port", settings.engine_port),
            PortUse("tokenizer", "--tokenizer-port", settings.tokenizer_port),
            PortUse("detokenizer", "--detokenizer-port", settings.detokenizer_port),
            *(PortUse(name, f"--{name}-metrics-port", port) for name, port in metrics.items() if settings.metrics),
        ),
        url=f"http://{_reachable(settings.host)}:{settings.port}",
        asks_for_keys=asks_for_keys,
    )  # fmt: skip


def _shared_flags(settings: LauncherSettings) -> tuple[str, ...]:
    otlp = ("--otlp-endpoint", settings.otlp_endpoint) if settings.otlp_endpoint else ()
    drain = str(settings.drain_timeout)
    return ("--log-format", "json", "--log-level", settings.log_level, "--drain-timeout", drain, *otlp)


def _reachable(host: str) -> str:
    """The host part of a URL that reaches a server which listens on `host`."""
    if host in ("0.0.0.0", "::"):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host
