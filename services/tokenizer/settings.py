"""The tokenizer's settings."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from services.common.engine_address import parse_engine_address
from services.common.settings import MAX_SECONDS, StationSettings


class TokenizerSettings(StationSettings):
    """Flags and environment variables of `python -m services.tokenizer`."""

    station: ClassVar[str] = "tokenizer"

    port: int = Field(50051, ge=0, le=65535, description="gRPC port; 0 lets the system choose.")
    metrics_port: int = Field(9461, ge=0, le=65535, description="HTTP port of /metrics; 0 for none.")
    max_connection_age: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        description="Seconds after which clients connect anew and find new replicas. Default: never.",
    )
    engine: Annotated[str, AfterValidator(parse_engine_address)] = Field(
        "127.0.0.1:50052", description="host:port of an engine, for the tokenizer files."
    )
    threads: int = Field(2, ge=1, description="Threads for short requests; as many again for long ones.")
    max_pending: int = Field(256, ge=1, description="Requests that wait or run at most; others are refused.")
    max_pending_mib: int = Field(256, ge=1, description="Size of the requests that wait or run at most, MiB.")
    max_text_mib: int = Field(
        8, ge=1, description="Size of one text at most, MiB, or what fits the model if that is less."
    )
