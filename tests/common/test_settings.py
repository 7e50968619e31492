"""Flags, a station's variables and shared variables."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

import pytest
from pydantic import Field, model_validator

from services.common.settings import MAX_SECONDS, SHARED_FIELDS, StationSettings


class SampleSettings(StationSettings):
    station: ClassVar[str] = "sample"

    port: int = Field(7, ge=0, le=65535)
    some_name: str = "default"
    fast: bool = False
    least: int = 0
    most: int | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.port:
            raise ValueError("least must not be above port")
        return self


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("POSTROAD_")]:
        monkeypatch.delenv(name)


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said about settings that end the program."""
    with pytest.raises(SystemExit) as stopped:
        SampleSettings.parse(args)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


@pytest.mark.parametrize("given", ["inf", "1e300", "1000001", "nan", "-1"])
def test_a_time_of_ages_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """gRPC takes a deadline in such a time for one that is over, and a request would end at once."""
    assert "--drain-timeout: Input should be" in refused([f"--drain-timeout={given}"], capsys)
    assert SampleSettings.parse(["--drain-timeout", "1000000"]).drain_timeout == MAX_SECONDS


def test_the_help_names_no_null(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        SampleSettings.parse(["--help"])
    assert "--most int" in capsys.readouterr().out


def test_defaults() -> None:
    settings = SampleSettings.parse([])
    assert (settings.host, settings.log_level, settings.log_format) == ("127.0.0.1", "info", "json")
    assert (settings.otlp_endpoint, settings.drain_timeout, settings.port) == ("", 30, 7)


def test_a_flag_wins_over_the_station_s_variable_and_that_over_the_shared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_DRAIN_TIMEOUT", "1")
    assert SampleSettings.parse([]).drain_timeout == 1
    monkeypatch.setenv("POSTROAD_SAMPLE_DRAIN_TIMEOUT", "2")
    assert SampleSettings.parse([]).drain_timeout == 2
    assert SampleSettings.parse(["--drain-timeout", "3"]).drain_timeout == 3


def test_the_default_s_own_value_as_a_flag_wins_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_SAMPLE_PORT", "8")
    assert SampleSettings.parse(["--port", "7"]).port == 7


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("host", "0.0.0.0", "0.0.0.0"),
        ("log_level", "debug", "debug"),
        ("log_format", "text", "text"),
        ("otlp_endpoint", "http://collector:4317", "http://collector:4317"),
        ("drain_timeout", "0.5", 0.5),
    ],
)
def test_every_shared_field_has_a_shared_variable(
    monkeypatch: pytest.MonkeyPatch, field: str, text: str, value: Any
) -> None:
    monkeypatch.setenv(f"POSTROAD_{field.upper()}", text)
    assert getattr(SampleSettings.parse([]), field) == value


def test_the_shared_fields_are_those_of_every_station() -> None:
    assert set(StationSettings.model_fields) == SHARED_FIELDS


def test_a_field_of_one_station_has_no_shared_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_PORT", "8")
    monkeypatch.setenv("POSTROAD_SOME_NAME", "shared")
    settings = SampleSettings.parse([])
    assert (settings.port, settings.some_name) == (7, "default")


def test_another_station_s_variable_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_OTHER_HOST", "0.0.0.0")
    assert SampleSettings.parse([]).host == "127.0.0.1"


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_SAMPLE_PORT", "")
    monkeypatch.setenv("POSTROAD_DRAIN_TIMEOUT", "")
    settings = SampleSettings.parse([])
    assert (settings.port, settings.drain_timeout) == (7, 30)


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SampleSettings.parse(["--fast"]).fast
    monkeypatch.setenv("POSTROAD_SAMPLE_FAST", "true")
    assert SampleSettings.parse([]).fast
    assert not SampleSettings.parse(["--no-fast"]).fast


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--port", "70000"), ("--port", "many"), ("--drain-timeout", "-1"), ("--log-format", "xml"), ("--fast", "maybe")],
)
def test_a_wrong_value_ends_the_program_and_names_the_flag(
    capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    assert flag in refused([f"{flag}={value}"], capsys)


@pytest.mark.parametrize("variable", ["POSTROAD_DRAIN_TIMEOUT", "POSTROAD_SAMPLE_DRAIN_TIMEOUT"])
def test_a_wrong_variable_is_named_beside_its_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "soon")
    assert f"python -m services.sample: --drain-timeout ({variable}): " in refused([], capsys)
    assert "python -m services.sample: --drain-timeout: " in refused(["--drain-timeout", "late"], capsys)


@pytest.mark.parametrize("flag", ["--port", "--most", "--drain-timeout"])
def test_pythons_own_way_to_write_numbers_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused([f"{flag}=1_0"], capsys)
    assert f"{flag}: '1_0' is no number" in said


def test_texts_may_look_like_pythons_numbers() -> None:
    assert SampleSettings.parse(["--some-name=1_0"]).some_name == "1_0"


def test_every_wrong_value_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = refused(["--port", "-1", "--drain-timeout", "-1"], capsys)
    assert "--port: " in words
    assert "--drain-timeout: " in words


def test_values_at_odds_are_told_in_the_station_s_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["--least", "9"], capsys) == "python -m services.sample: least must not be above port\n"


def test_an_unknown_flag_ends_the_program_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--speed" in refused(["--speed", "9"], capsys)


def test_an_unexpected_word_ends_the_program_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "quickly" in refused(["quickly"], capsys)


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        SampleSettings.parse(["--help"])
    assert stopped.value.code == 0
    words = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in words for name in SampleSettings.model_fields)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--some-nam=x"], "unrecognized arguments: --some-nam=x (did you mean --some-name?); --help lists the flags"),
        (["--prot", "1", "--no-fats"], "--prot 1 --no-fats (did you mean --port, --no-fast?); "),
        (["--some", "x"], "unrecognized arguments: --some x; "),
        (["stray"], "unrecognized arguments: stray; "),
        (["--port"], "argument --port: expected one argument; "),
    ],
)
def test_an_unknown_flag_is_refused_in_one_line_with_what_was_meant(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(args, capsys)
    assert said.startswith("python -m services.sample: ")
    assert words in said
    assert said.count("\n") == 1
