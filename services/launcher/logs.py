"""The merged log: every line of every service as it was into a file per service, and readable on the terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

LAUNCHER = "launcher"
NAME_WIDTH = 11
COLOURS = (36, 32, 33, 35, 34)  # ANSI foreground colours, by the order of the services
LEVEL_COLOURS = {"warning": 33, "error": 31, "critical": 31}
_BLOCK = "exception"  # of several lines, shown below
_HIDDEN = frozenset({"event", "level", "timestamp", "station", _BLOCK})  # shown by place, or by the line's prefix


class MergedLog:
    """Takes the lines of the services and the launcher's own words. Files are begun anew with each instance."""

    def __init__(self, folder: Path, names: Iterable[str], out: TextIO, log_format: Literal["json", "text"]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, BinaryIO] = {
            name: (folder / f"{name}.log").open("wb", buffering=0) for name in (*names, LAUNCHER)
        }
        self._unwritable: set[str] = set()  # whose file refuses lines, a full disk for instance
        self._out = out
        self._format = log_format
        colour = out.isatty() and not os.environ.get("NO_COLOR")
        self._colours = dict(zip(self._files, COLOURS, strict=False)) if colour else {}

    def line(self, name: str, raw: bytes) -> None:
        """One line that service `name` wrote, without its line end."""
        self._keep(name, raw)
        if self._format == "json":
            text = raw.decode(errors="replace")
            self._show((text if structured(raw) else _entry(name, "output", "info", line=text)) + "\n")
        else:
            prefix = self._paint(f"{name:<{NAME_WIDTH}}", self._colours.get(name))
            self._show("".join(f"{prefix} {text}\n" for text in readable(raw, colour=bool(self._colours))))

    def say(self, event: str, level: str = "info", **fields: Any) -> None:
        """A line of the launcher's own."""
        self.line(LAUNCHER, _entry(LAUNCHER, event, level, **fields).encode())

    def banner(self, text: str) -> None:
        """Text to copy from, without a prefix; only where people read."""
        if self._format == "text":
            self._show(f"\n{text}\n\n")

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()

    def _keep(self, name: str, raw: bytes) -> None:
        # Whatever becomes of the file, the service's output is read on: a pipe that fills up would stop the service.
        try:
            self._files[name].write(raw + b"\n")
        except OSError as error:
            if name not in self._unwritable:
                self._unwritable.add(name)
                self.say(f"the log file of {name} takes no lines", level="error", cause=error.strerror)
        else:
            self._unwritable.discard(name)

    def _show(self, text: str) -> None:
        # Who reads our output may go away (a pipe into `head`, a terminal); the services and their files go on.
        with suppress(OSError):
            self._out.write(text)
            self._out.flush()

    @staticmethod
    def _paint(text: str, colour: int | None) -> str:
        return text if colour is None else f"\033[{colour}m{text}\033[0m"


def structured(raw: bytes) -> dict[str, Any] | None:
    """A line of a service's log as its fields; None for any other line."""
    try:
        entry = json.loads(raw) if raw.startswith(b"{") else None
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "event" in entry else None


def last_error(lines: Iterable[bytes]) -> str:
    """The last error in a service's last lines, in one line; empty when there is none.

    It is an error that the service logged, or what it wrote in another form and nothing after it: a traceback's last
    line, the words about a wrong flag.
    """
    logged = unstructured = ""
    for raw in lines:
        entry = structured(raw)
        if entry is None:
            unstructured = raw.decode(errors="replace").strip() or unstructured
            continue
        unstructured = ""
        if entry.get("level") in ("error", "critical"):
            details = entry.get("error") or str(entry.get("exception", "")).strip().rpartition("\n")[2]
            logged = f"{entry['event']}: {details}" if details else str(entry["event"])
    return unstructured or logged


def readable(raw: bytes, colour: bool = False) -> list[str]:
    """A structured line as `time level event key=value …`, with tracebacks below it; any other line as it is."""
    entry = structured(raw)
    if entry is None:
        return [raw.decode(errors="replace").rstrip("\r")]
    level = str(entry.get("level", "info"))
    fields = [f"{key}={_value(value)}" for key, value in entry.items() if key not in _HIDDEN]
    shown = f"{level:<7}"
    if colour and level in LEVEL_COLOURS:
        shown = f"\033[{LEVEL_COLOURS[level]}m{shown}\033[0m"
    first = " ".join([_local_time(entry.get("timestamp")), shown, str(entry["event"]), *fields])
    return [first, *(f"    {line}" for line in str(entry.get(_BLOCK, "")).splitlines())]


def _entry(station: str, event: str, level: str, **fields: Any) -> str:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    entry = {"station": station, "event": event, "level": level, "timestamp": now, **fields}
    return json.dumps(entry, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, float):
        # Four digits, and all of those before the point; never 5.753e+04.
        return f"{value:.0f}" if abs(value) >= 1000 else f"{Decimal(f'{value:.4g}'):f}"
    if isinstance(value, str) and value and not any(char.isspace() or char in '"=' for char in value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _local_time(timestamp: Any) -> str:
    try:
        return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except (TypeError, ValueError):
        return "--:--:--.---"
