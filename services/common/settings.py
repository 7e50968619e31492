"""The settings that every station has, and how flags and environment variables become a typed object.

A station's settings class extends `StationSettings`. Its field `some_name` is the flag `--some-name` and the variable
`POSTROAD_<STATION>_SOME_NAME`; the fields of `StationSettings` are also read from `POSTROAD_SOME_NAME`, for all
stations at once. A flag wins over a station's variable, that over the shared one.
"""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from services.common.spelling import closest

SHARED_PREFIX = "POSTROAD_"
MAX_SECONDS = 1_000_000  # of a setting, eleven days: gRPC takes a time of ages, or infinity, for one that is over
SHARED_FIELDS = frozenset({"host", "log_level", "log_format", "otlp_endpoint", "drain_timeout"})


class _SharedEnvSource(EnvSettingsSource):
    """`POSTROAD_X` for the fields of `StationSettings` alone, so that no `POSTROAD_PORT` hits every port."""

    def __call__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__call__().items() if key in SHARED_FIELDS}


class StationSettings(BaseSettings):
    """Settings of any station. Subclasses set `station` and override the defaults of `port` and `metrics_port`."""

    station: ClassVar[str] = ""

    model_config = SettingsConfigDict(
        cli_kebab_case=True, cli_implicit_flags=True, cli_hide_none_type=True, cli_exit_on_error=False, extra="ignore"
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["json", "text"] = Field("json", description="Form of a log line.")
    otlp_endpoint: str = Field(
        "", description="OTLP/gRPC collector for traces, for instance http://collector:4317. Empty: no traces."
    )
    drain_timeout: float = Field(
        30.0,
        ge=0,
        le=MAX_SECONDS,
        description="Seconds that running requests get to finish after SIGTERM before they are ended.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_pythons_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Nowhere else is 8_000 a number, and it may be a slip for another one."""
        kind = cls.model_fields[info.field_name].annotation if info.field_name else None
        if isinstance(value, str) and "_" in value and {int, float} & {kind, *get_args(kind)}:
            raise ValueError(f"{value!r} is no number")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        own = EnvSettingsSource(settings_cls, env_prefix=cls._own_prefix(), env_ignore_empty=True)
        shared = _SharedEnvSource(settings_cls, env_prefix=SHARED_PREFIX, env_ignore_empty=True)
        return init_settings, own, shared

    @classmethod
    def parse(cls, args: list[str] | None = None) -> Self:
        """Settings from `args` (default: the command line) and the environment; says what is wrong and exits with 2."""
        prog = f"python -m services.{cls.station}"
        cli: CliSettingsSource[Any] = CliSettingsSource(cls, cli_prog_name=prog)
        args = sys.argv[1:] if args is None else args
        try:
            given = cli(args=args)()
        except SettingsError as error:
            reason = str(error).removeprefix("error parsing CLI: ")
            print(f"{prog}: {reason}{cls._probably_meant(args)}; --help lists the flags", file=sys.stderr)
            raise SystemExit(2) from None
        try:
            return cls(**given)
        except ValidationError as error:
            for problem in error.errors():
                place = "".join(f"{cls._where_from(str(part), given)}: " for part in problem["loc"][:1])
                # No place: several settings are at odds.
                print(f"{prog}: {place}{problem['msg'].removeprefix('Value error, ')}", file=sys.stderr)
            raise SystemExit(2) from None

    @classmethod
    def variables(cls) -> frozenset[str]:
        """The names of all variables that are read, in capitals."""
        own = {cls._own_prefix() + field.upper() for field in cls.model_fields}
        return frozenset(own | {SHARED_PREFIX + field.upper() for field in SHARED_FIELDS})

    @classmethod
    def _probably_meant(cls, args: list[str]) -> str:
        """The flags that come closest to those of `args` that there are not, as a question."""
        fields = [field.replace("_", "-") for field in cls.model_fields]
        flags = [f"--{start}{field}" for field in fields for start in ("", "no-")]
        given = (word.partition("=")[0] for word in args if word.startswith("--"))
        meant = ", ".join(filter(None, (closest(flag, flags) for flag in given if flag not in flags)))
        return f" (did you mean {meant}?)" if meant else ""

    @classmethod
    def _own_prefix(cls) -> str:
        return f"{SHARED_PREFIX}{cls.station.upper()}_"

    @classmethod
    def _where_from(cls, field: str, given: dict[str, Any]) -> str:
        """The flag of a field, with the variable where the value came from one; `given` is what the flags say."""
        flag = "--" + field.replace("_", "-")
        variables = (prefix + field.upper() for prefix in (cls._own_prefix(), SHARED_PREFIX))
        variable = next((name for name in variables if os.environ.get(name)), None)
        return flag if field in given or variable is None else f"{flag} ({variable})"
