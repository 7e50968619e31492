"""The merged log: every line of every service as it was into a file per service, and readable on the terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

LAUNCHER = "launcher"
NAME_WIDTH = 11
COLOURS = (36, 32, 33, 35, 34)  # ANSI foreground colours, by the order of the services
LEVEL_COLOURS = {"warning": 33, "error": 31, "critical": 31}
_BLOCKS = ("exception", "last_lines")  # of several lines, shown below
_HIDDEN = frozenset({"event", "level", "timestamp", "station", *_BLOCKS})  # shown by place, or by the line's prefix


class MergedLog:
    """Takes the lines of the services and the launcher's own words. Files are begun anew with each instance."""

    def __init__(self, folder: Path, names: Iterable[str], out: TextIO, log_format: Literal["json", "text"]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, BinaryIO] = {
            name: (folder / f"{name}.log").open("wb", buffering=0) for name in (*names, LAUNCHER)
        }
        self._out = out
        self._format = log_format
        colour = out.isatty() and not os.environ.get("NO_COLOR")
        self._colours = dict(zip(self._files, COLOURS, strict=False)) if colour else {}

    def line(self, name: str, raw: bytes) -> None:
        """One line that service `name` wrote, without its line end."""
        self._files[name].write(raw + b"\n")
        if self._format == "json":
            self._show(raw.decode(errors="replace") + "\n")
        else:
            prefix = self._paint(f"{name:<{NAME_WIDTH}}", self._colours.get(name))
            self._show("".join(f"{prefix} {text}\n" for text in readable(raw, colour=bool(self._colours))))

    def say(self, event: str, level: str = "info", **fields: Any) -> None:
        """A line of the launcher's own."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        entry = {"station": LAUNCHER, "event": event, "level": level, "timestamp": now, **fields}
        self.line(LAUNCHER, json.dumps(entry, ensure_ascii=False).encode())

    def banner(self, text: str) -> None:
        """Text to copy from, without a prefix; only where people read."""
        if self._format == "text":
            self._show(f"\n{text}\n\n")

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()

    def _show(self, text: str) -> None:
        # Who reads our output may go away (a pipe into `head`); the services and their files go on.
        with suppress(BrokenPipeError):
            self._out.write(text)
            self._out.flush()

    @staticmethod
    def _paint(text: str, colour: int | None) -> str:
        return text if colour is None else f"\033[{colour}m{text}\033[0m"


def readable(raw: bytes, colour: bool = False) -> list[str]:
    """A structured line as `time level event key=value …`, with tracebacks below it; any other line as it is."""
    text = raw.decode(errors="replace").rstrip("\r")
    try:
        entry = json.loads(text) if text.startswith("{") else None
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or "event" not in entry:
        return [text]
    level = str(entry.get("level", "info"))
    fields = [f"{key}={_value(value)}" for key, value in entry.items() if key not in _HIDDEN]
    shown = f"{level:<7}"
    if colour and level in LEVEL_COLOURS:
        shown = f"\033[{LEVEL_COLOURS[level]}m{shown}\033[0m"
    first = " ".join([_local_time(entry.get("timestamp")), shown, str(entry["event"]), *fields])
    blocks = [line for key in _BLOCKS for line in str(entry.get(key, "")).splitlines()]
    return [first, *(f"    {line}" for line in blocks)]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str) and value and not any(char.isspace() or char in '"=' for char in value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _local_time(timestamp: Any) -> str:
    try:
        return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except (TypeError, ValueError):
        return "--:--:--.---"
