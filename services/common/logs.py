"""Structured logs: one line per event on standard output, JSON or readable text."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger


class _Lines(structlog.PrintLogger):
    """A line that cannot be written is lost, on a full disk or with a reader that went away (a pipe into `head`): what
    a station does for its clients does not end with its log."""

    def msg(self, message: str) -> None:
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def make_logger(station: str, level: str, log_format: str) -> FilteringBoundLogger:
    """A logger whose lines carry the station's name and the time (UTC, ISO 8601)."""
    renderer: Any = structlog.processors.JSONRenderer()
    if log_format == "text":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())
    # Libraries' own warnings and errors go the same way as text; their chatter does not.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s", force=True)
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _Lines(sys.stdout),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        context_class=dict,
    ).bind(station=station)
    return logger
