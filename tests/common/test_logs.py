"""One line per event."""

from __future__ import annotations

import errno
import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from services.common.logs import make_logger

LEVELS = ["debug", "info", "warning", "error"]


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    before = datetime.now(UTC)
    make_logger("engine", "info", "json").info("request", request_id="req-1", tokens=3, text='two\n"lines" 日本 \ud800')
    (line,) = lines(capsys)
    assert before <= datetime.fromisoformat(line.pop("timestamp")) <= datetime.now(UTC)
    assert line == {
        "event": "request",
        "level": "info",
        "station": "engine",
        "request_id": "req-1",
        "tokens": 3,
        "text": 'two\n"lines" 日本 \ud800',
    }


@pytest.mark.parametrize("level", LEVELS)
def test_less_than_the_level_is_not_logged(capsys: pytest.CaptureFixture[str], level: str) -> None:
    log = make_logger("engine", level, "json")
    for one in LEVELS:
        getattr(log, one)("event")
    assert [line["level"] for line in lines(capsys)] == LEVELS[LEVELS.index(level) :]


def test_an_exception_is_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = make_logger("engine", "info", "json")
    try:
        raise KeyError("missing")
    except KeyError:
        log.exception("unexpected error")
    (line,) = lines(capsys)
    assert (line["event"], line["level"]) == ("unexpected error", "error")
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("KeyError: 'missing'")


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    make_logger("engine", "info", "text").info("listening", port=50052)
    (line,) = capsys.readouterr().out.splitlines()
    assert "listening" in line
    assert "port=50052" in line
    assert "station=engine" in line
    assert "\x1b" not in line  # no colours where it is not a terminal


@pytest.mark.filterwarnings("error")
def test_an_exception_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    log = make_logger("engine", "info", "text")
    try:
        raise KeyError("missing")
    except KeyError:
        log.exception("unexpected error")
    assert "KeyError: 'missing'" in capsys.readouterr().out


def test_libraries_warn_on_standard_error_and_do_not_chatter(capsys: pytest.CaptureFixture[str]) -> None:
    make_logger("engine", "debug", "json")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("beware of %s", "this")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "library: beware of this\n")


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("level", LEVELS)
def test_a_line_that_cannot_be_written_is_lost_and_raises_nothing(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    log = make_logger("engine", "debug", "json")
    getattr(log, level)("request")
    with pytest.raises(OSError, match="No space left"):
        print("request", flush=True)
