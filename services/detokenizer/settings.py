"""The detokenizer's settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from services.common.engine_address import parse_engine_address
from services.common.settings import MAX_SECONDS, StationSettings


class DetokenizerSettings(StationSettings):
    """Flags and environment variables of `python -m services.detokenizer`."""

    station: ClassVar[str] = "detokenizer"

    port: int = Field(50053, ge=0, le=65535, description="gRPC port; 0 lets the system choose.")
    metrics_port: int = Field(9463, ge=0, le=65535, description="HTTP port of /metrics; 0 for none.")
    max_connection_age: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        description="Seconds after which clients connect anew and find new replicas. Default: never.",
    )
    engine: Annotated[str, AfterValidator(parse_engine_address)] = Field(
        "127.0.0.1:50052",
        description="host:port of an engine: for the tokenizer files, and for requests that do not name one.",
    )
    engine_transport: Literal["frames", "calls"] = Field(
        "frames",
        description="How tokens come from the engine: one stream of step frames for all requests, or a stream each.",
    )
    pace_ms: float = Field(
        50.0,
        ge=0,
        le=1000,
        description="Least time between two messages of a stream while 16 or more streams run, milliseconds; what has "
        "waited so long leaves with the next token, or after as long again. The first and the last message never wait. "
        "0: a message per token.",
    )
