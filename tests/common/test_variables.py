"""Variables that nothing reads, and which were meant."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest
import structlog
from structlog.testing import capture_logs

from services.common.settings import StationSettings
from services.common.variables import unknown_variables, warn_of_unknown_variables


class SampleSettings(StationSettings):
    station: ClassVar[str] = "sample"

    max_waiting: int = 0


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("POSTROAD_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("POSTROAD_SAMPLE_MAX_WAITNG", "POSTROAD_SAMPLE_MAX_WAITING"),
        ("POSTROAD_SAMPEL_MAX_WAITING", "POSTROAD_SAMPLE_MAX_WAITING"),
        ("postroad_sample_max_wait", "POSTROAD_SAMPLE_MAX_WAITING"),
        ("POSTROAD_LOGLEVEL", "POSTROAD_LOG_LEVEL"),
        ("POSTROAD_SAMPLE_COLOUR", ""),
        ("POSTROAD_FOO", ""),
    ],
)
def test_what_nothing_reads_is_told_with_what_was_meant(name: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert list(unknown_variables(SampleSettings)) == [(name, meant)]


@pytest.mark.parametrize(
    "name",
    [
        "POSTROAD_SAMPLE_MAX_WAITING",
        "postroad_sample_max_waiting",
        "POSTROAD_SAMPLE_HOST",
        "POSTROAD_HOST",
        "POSTROAD_ENGINE_DTYP",  # the engine tells that
        "POSTROAD_IMAGE_TAG",
        "POSTROAD_ENGINE_MEMORY",
        "PATH",
        "POSTROADS",
    ],
)
def test_what_is_read_or_another_s_is_not_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert list(unknown_variables(SampleSettings)) == []


def test_an_empty_one_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_SAMPLE_COLOUR", "")
    assert list(unknown_variables(SampleSettings)) == []


def test_each_is_a_warning_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_SAMPLE_HOTS", "x")
    monkeypatch.setenv("POSTROAD_SAMPLE_COLOUR", "x")
    with capture_logs() as logs:
        warn_of_unknown_variables(SampleSettings, structlog.get_logger())
    told = {"event": "unknown variable", "log_level": "warning"}
    assert logs == [
        {**told, "variable": "POSTROAD_SAMPLE_COLOUR"},
        {**told, "variable": "POSTROAD_SAMPLE_HOTS", "did_you_mean": "POSTROAD_SAMPLE_HOST"},
    ]
