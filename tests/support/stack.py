"""A whole running road for end-to-end tests: the real launcher with its four services on free ports.

    with Stack(engine_flags="--executor scripted") as stack:
        httpx.get(f"{stack.url}/v1/models")
        stack.kill("engine")  # the launcher restarts it

The fixtures `real_stack` and `scripted_stack` (tests/e2e/conftest.py) are one such road each for the whole session.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.ports import free_ports
from tests.support.processes import Program, children_of, is_alive, wait_until

SERVICES = ("engine", "tokenizer", "detokenizer", "gateway")
READY_SECONDS = 240.0
STOP_SECONDS = 60.0


class Stack:
    """`python -m services.launcher` as a context manager: ready when entered, and nothing of it left when closed.

    `*_flags` are the services' own flags; `env` is added to the environment, from which POSTROAD_* is taken out.
    Services may be killed any number of times.
    """

    def __init__(
        self,
        *,
        model: str = "",
        engine_flags: str = "",
        tokenizer_flags: str = "",
        detokenizer_flags: str = "",
        gateway_flags: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
        self._folder = tempfile.TemporaryDirectory(prefix="postroad-test-")
        self._run_dir = Path(self._folder.name)
        self._flags = [
            *(f"--{name}-port={port}" for name, port in self._ports.items() if name != "gateway"),
            f"--port={self._ports['gateway']}",
            "--no-metrics",
            "--log-format=json",
            "--drain-timeout=5",
            "--max-deaths=1000",
            f"--run-dir={self._run_dir}",
            *([f"--model={model}"] if model else []),
            f"--engine-flags={engine_flags}",
            f"--tokenizer-flags={tokenizer_flags}",
            f"--detokenizer-flags={detokenizer_flags}",
            f"--gateway-flags={gateway_flags}",
        ]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("POSTROAD_")}
        self._env = {**clean, **(env or {})}
        self._launcher: Program | None = None

    @property
    def url(self) -> str:
        """The gateway's base URL, without /v1."""
        return f"http://{self.address('gateway')}"

    def address(self, service: str) -> str:
        """host:port of a service; gRPC for all but the gateway."""
        return f"127.0.0.1:{self._ports[service]}"

    def pids(self) -> dict[str, int]:
        """The process id of each service that runs now, as the launcher wrote it down."""
        return {name: pid for name in SERVICES if (pid := self._pid(name)) is not None}

    @property
    def launcher_pid(self) -> int:
        """The process id of the launcher itself."""
        assert self._launcher is not None
        return self._launcher.pid

    def kill(self, service: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal that ends the service; returns when the launcher has noticed its end."""
        pid = self.pids()[service]
        os.kill(pid, number)
        wait_until(lambda: self._pid(service) != pid, f"the launcher noticed the end of {service}")

    def log_text(self, service: str | None = None) -> str:
        """What a service ("launcher" is one, too) or all of them wrote so far."""
        names = (*SERVICES, "launcher") if service is None else (service,)
        return "".join((self._run_dir / "logs" / f"{name}.log").read_text() for name in names)

    def __enter__(self) -> Self:
        self._launcher = Program([sys.executable, "-m", "services.launcher", *self._flags], env=self._env)
        try:
            self._launcher.wait_for_line(_says_ready, "the road is ready", READY_SECONDS)
        except BaseException:
            self._stop(self._launcher)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._launcher is not None
        self._stop(self._launcher)

    def _stop(self, launcher: Program) -> None:
        """SIGTERM, and the check that no process is left."""
        with launcher, self._folder:
            family = _descendants(launcher.pid) if is_alive(launcher.pid) else []
            if is_alive(launcher.pid):
                launcher.send(signal.SIGTERM)
            launcher.wait(STOP_SECONDS)
            try:
                wait_until(lambda: not any(map(is_alive, family)), f"the launcher's processes {family} ended", 5)
            finally:
                for pid in filter(is_alive, family):
                    os.kill(pid, signal.SIGKILL)

    def _pid(self, service: str) -> int | None:
        try:
            text = (self._run_dir / f"{service}.pid").read_text()
        except FileNotFoundError:
            return None
        return int(text) if text.strip() else None  # empty: it is being written


def _says_ready(line: str) -> bool:
    if not line.startswith("{"):
        return False
    entry = json.loads(line)
    return (entry.get("station"), entry.get("event")) == ("launcher", "ready")


def _descendants(pid: int) -> list[int]:
    children = children_of(pid)
    return [*children, *(deep for child in children for deep in _descendants(child))]
