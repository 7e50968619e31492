"""The merged log: what people see, and what is kept."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from services.launcher.logs import MergedLog, last_error, readable


def test_a_structured_line_becomes_time_level_event_and_fields() -> None:
    entry = {
        "station": "engine",
        "timestamp": "2026-01-02T03:04:05.678901Z",
        "level": "info",
        "event": "request",
        "request_id": "req-1",
        "outcome": "has spaces",
        "prefill_ms": 12.3456,
        "tokens": 7,
    }
    (line,) = readable(json.dumps(entry).encode())
    time, rest = line.split(" ", 1)
    assert time.endswith("04:05.678")
    assert rest == 'info    request request_id=req-1 outcome="has spaces" prefill_ms=12.35 tokens=7'


def test_a_traceback_stands_below_its_line() -> None:
    entry = {"event": "unexpected error", "level": "error", "exception": "Traceback:\n  boom"}
    assert readable(json.dumps(entry).encode()) == [
        "--:--:--.--- error   unexpected error",
        "    Traceback:",
        "      boom",
    ]


@pytest.mark.parametrize("raw", ["plain words", '{"broken": ', '{"no": "event"}', "[1]", ""])
def test_any_other_line_stays_as_it_is(raw: str) -> None:
    assert readable(raw.encode()) == [raw]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (57530.4, "57530"),
        (1234567.0, "1234567"),
        (999.96, "1000"),
        (12.3456, "12.35"),
        (0.00001234, "0.00001234"),
        (0.0, "0"),
    ],
)
def test_numbers_are_never_in_scientific_notation(value: float, shown: str) -> None:
    (line,) = readable(json.dumps({"event": "x", "value": value}).encode())
    assert line.endswith(f" value={shown}")


def test_lines_of_another_form_are_json_too(tmp_path: Path) -> None:
    out = io.StringIO()
    log = MergedLog(tmp_path, ["engine"], out, "json")
    log.line("engine", b'UserWarning: "\xff"')
    log.close()
    entry = json.loads(out.getvalue())
    assert (entry["station"], entry["event"], entry["line"]) == ("engine", "output", 'UserWarning: "\ufffd"')
    assert (tmp_path / "engine.log").read_bytes() == b'UserWarning: "\xff"\n', "the file has it as it was"


INFO = b'{"event": "loading", "level": "info"}'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([INFO, b"Traceback:", b'  File "x"', b"OSError: no such file", b""], "OSError: no such file"),
        ([b'{"event": "no model", "level": "error", "error": "not a folder"}', INFO], "no model: not a folder"),
        (
            [b'{"event": "failed", "level": "error", "exception": "Traceback:\\n  x\\nKeyError: 1"}'],
            "failed: KeyError: 1",
        ),
        ([b"UserWarning: long ago", INFO], ""),
        ([], ""),
    ],
)
def test_the_last_error(lines: list[bytes], said: str) -> None:
    assert last_error(lines) == said


def test_bytes_that_are_not_utf8_are_shown_and_kept(tmp_path: Path) -> None:
    out = io.StringIO()
    log = MergedLog(tmp_path, ["engine"], out, "text")
    log.line("engine", b"\xff!")
    log.close()
    assert out.getvalue() == "engine      \ufffd!\n"
    assert (tmp_path / "engine.log").read_bytes() == b"\xff!\n"


def test_json_form_passes_lines_through_and_shows_no_banner(tmp_path: Path) -> None:
    out = io.StringIO()
    log = MergedLog(tmp_path, ["engine"], out, "json")
    log.line("engine", b'{"event": "x"}')
    log.banner("curl …")
    log.say("ready", seconds=2)
    log.close()
    first, second = out.getvalue().splitlines()
    assert first == '{"event": "x"}'
    entry = json.loads(second)
    assert (entry["station"], entry["event"], entry["seconds"]) == ("launcher", "ready", 2)
    assert json.loads((tmp_path / "launcher.log").read_text()) == entry


def test_a_reader_that_went_away_does_not_stop_the_files(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    log = MergedLog(tmp_path, ["engine"], Gone(), "text")
    log.line("engine", b"still here")
    log.close()
    assert (tmp_path / "engine.log").read_text() == "still here\n"


def test_a_full_disk_is_told_once_and_stops_nobody(tmp_path: Path) -> None:
    """/dev/full refuses every byte, as a full disk does."""
    out = io.StringIO()
    (tmp_path / "engine.log").symlink_to("/dev/full")
    log = MergedLog(tmp_path, ["engine"], out, "text")
    for number in range(3):
        log.line("engine", f"line {number}".encode())
    log.close()
    shown = out.getvalue()
    assert [f"line {number}" in shown for number in range(3)] == [True] * 3
    assert shown.count("the log file of engine takes no lines") == 1
    assert "takes no lines" in (tmp_path / "launcher.log").read_text()
