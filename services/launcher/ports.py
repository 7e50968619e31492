"""Are the ports free? Asked before anything starts, so that the answer can name the service."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from services.common.ports import listen_error

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PortUse:
    """A port that a service will listen on, and the flag that changes it."""

    service: str
    flag: str
    port: int
    host: str = LOOPBACK

    def __str__(self) -> str:
        return f"port {self.port} of the {self.service} ({self.flag})"


def port_problems(uses: Sequence[PortUse]) -> list[str]:
    """One message for each port that cannot be had; empty when all are free."""
    problems = []
    first_use: dict[int, PortUse] = {}
    for use in uses:
        earlier = first_use.setdefault(use.port, use)
        if earlier is not use:
            problems.append(f"{use} is also {earlier}")
        elif reason := _why_not(use.host, use.port):
            problems.append(f"{use} {reason}")
    return problems


def _why_not(host: str, port: int) -> str:
    error = listen_error(host, port)
    if error is None:
        return ""
    if error.errno == errno.EADDRINUSE:
        return f"is in use on {host}"
    return f"cannot be used on {host}: {error.strerror}"
