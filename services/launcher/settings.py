"""The launcher's flags."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from services.common.settings import MAX_SECONDS, StationSettings

Port = Annotated[int, Field(ge=1, le=65535)]


def _flags(service: str) -> str:
    return f'More flags of the {service}, as for a shell. Write it with "=": --{service}-flags="--some-flag 1".'


class LauncherSettings(StationSettings):
    """Settings of `python -m services.launcher`. `log_level`, `otlp_endpoint` and `drain_timeout` are passed on."""

    station: ClassVar[str] = "launcher"

    host: str = Field("127.0.0.1", description="Address of the gateway; the other services stay on 127.0.0.1.")
    log_format: Literal["json", "text"] = Field("text", description="Form of the merged log.")
    model: str = Field("", description="Hub id, local folder or .gguf file. Empty: the engine's default model.")
    port: Port = Field(8000, description="HTTP port of the gateway.")
    tokenizer_port: Port = Field(50051, description="gRPC port of the tokenizer.")
    engine_port: Port = Field(50052, description="gRPC port of the engine.")
    detokenizer_port: Port = Field(50053, description="gRPC port of the detokenizer.")
    metrics: bool = Field(True, description="Serve the metrics of tokenizer, engine and detokenizer.")
    tokenizer_metrics_port: Port = Field(9461, description="Metrics port of the tokenizer.")
    engine_metrics_port: Port = Field(9462, description="Metrics port of the engine.")
    detokenizer_metrics_port: Port = Field(9463, description="Metrics port of the detokenizer.")
    gateway_flags: str = Field("", description=_flags("gateway"))
    tokenizer_flags: str = Field("", description=_flags("tokenizer"))
    engine_flags: str = Field("", description=_flags("engine"))
    detokenizer_flags: str = Field("", description=_flags("detokenizer"))
    ready_timeout: float = Field(
        600.0, gt=0, le=MAX_SECONDS, description="Seconds until the road must be ready the first time."
    )
    max_deaths: int = Field(3, ge=1, description="Deaths of a service within 60 s at which the launcher gives up.")
    run_dir: Path = Field(Path(".run"), description="Folder of logs/NAME.log and NAME.pid, for one launcher at a time.")

    @field_validator("gateway_flags", "tokenizer_flags", "engine_flags", "detokenizer_flags")
    @classmethod
    def _can_be_passed_on(cls, value: str, info: ValidationInfo) -> str:
        # split raises ValueError on an open quote, here and not when the services are started
        if any(word.partition("=")[0] == "--port" for word in shlex.split(value)):
            service = str(info.field_name).removesuffix("_flags")
            own = "--port" if service == "gateway" else f"--{service}-port"
            raise ValueError(f"--port is set by the launcher, so that the others find the {service}; give it {own}")
        return value
