"""The gateway's settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from services.common.engine_address import parse_engine_address
from services.common.settings import MAX_SECONDS, StationSettings
from services.gateway.api_keys import read_keys

# As browsers send it: in small letters and without a path.
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s?#@A-Z]+")


class GatewaySettings(StationSettings):
    """Flags `--some-name`, variables `POSTROAD_GATEWAY_SOME_NAME`."""

    station: ClassVar[str] = "gateway"

    port: int = Field(8000, ge=0, le=65535, description="HTTP port.")
    tokenizer: str = Field(
        "127.0.0.1:50051", description="Tokenizer: host:port, or dns:///name:port for all of a name."
    )
    detokenizer: str = Field(
        "127.0.0.1:50053", description="Detokenizer: host:port, or dns:///name:port for all of a name."
    )
    engines: str = Field("127.0.0.1:50052", description="Engine replicas: host:port, comma-separated.")
    # JSON is parsed on the event loop, 3 to 20 ms per MiB; 8 MiB of text are some two million tokens.
    max_body_bytes: int = Field(8 * 1024 * 1024, ge=1, description="Largest request body; a larger one gets 413.")
    max_header_bytes: int = Field(
        64 * 1024, ge=1024, description="Largest request line and headers together; larger ones get 431."
    )
    header_timeout: float = Field(
        30.0,
        gt=0,
        le=MAX_SECONDS,
        description="Seconds for a new connection, or a request begun, to have sent all its headers.",
    )
    max_connections: int = Field(
        2048, ge=1, description="Connections of clients at a time; one more gets 503 and is closed."
    )
    request_timeout: float = Field(
        600.0, gt=0, le=MAX_SECONDS, description="Seconds from a request's arrival to its last byte."
    )
    retry_wait: float = Field(
        30.0,
        ge=0,
        le=MAX_SECONDS,
        description="Seconds that a request without a token yet waits for a station to come back.",
    )
    max_waiting: int = Field(
        1024, ge=1, description="Requests that may wait for a station to come back; one more gets 429."
    )

    tool_call_format: Literal["auto", "none", "hermes", "llama3_json", "pythonic", "mistral"] = Field(
        "auto", description="How the model writes tool calls; 'auto' is read off its chat template."
    )
    reasoning_format: Literal["auto", "none", "think"] = Field(
        "auto", description="How the model writes its reasoning; 'auto' is read off its chat template."
    )
    api_keys_file: Path | None = Field(
        None, description="TOML file with the API keys that are let in; read again when it changes. Unset: all are."
    )
    cors_origins: str = Field(
        "", description="Origins whose pages may call the gateway, comma-separated; * for all. Empty: none."
    )

    @field_validator("api_keys_file")
    @classmethod
    def _usable_keys(cls, value: Path | None) -> Path | None:
        if value is not None:
            read_keys(value)
        return value

    @field_validator("engines")
    @classmethod
    def _addresses_that_detokenizers_take(cls, value: str) -> str:
        if not _parts(value):
            raise ValueError("at least one engine address is needed")
        return ",".join(_engine_address(part) for part in _parts(value))

    @field_validator("cors_origins")
    @classmethod
    def _origins_as_browsers_send_them(cls, value: str) -> str:
        for origin in _parts(value):
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin: scheme://host or scheme://host:port, without a path, or *")
        return value

    @property
    def engine_addresses(self) -> list[str]:
        """The addresses of `engines`, in order."""
        return _parts(self.engines)

    @property
    def cors_origin_list(self) -> list[str]:
        """The origins of `cors_origins`."""
        return _parts(self.cors_origins)


def _engine_address(given: str) -> str:
    try:
        return parse_engine_address(given)
    except ValueError as error:
        raise ValueError(f"{given!r} {error}") from None


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
