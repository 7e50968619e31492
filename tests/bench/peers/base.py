"""What a comparison needs of a server, and the kinds of it: processes that speak HTTP, and the road itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from tests.bench.load import load
from tests.bench.scenarios import Scenario, Width
from tests.bench.sse_client import Answer

READY_SECONDS = 600.0
STOP_SECONDS = 30.0


class PeerError(Exception):
    """A peer that could not be set up or did not start; the message has the end of its log."""


class Server(ABC):
    """A running server with one model. It is `paused` while another one is measured. Use as a context manager."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process; descendants count as its own."""

    @abstractmethod
    def run(self, scenario: Scenario, seed: int) -> Sequence[Answer]:
        """Puts the scenario's load on it."""

    def pause(self) -> None:  # noqa: B027
        """Makes sure that it uses no core until `resume`."""

    def resume(self) -> None:  # noqa: B027
        """Lets it go on."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Starts it; returns when it answers. Raises PeerError."""

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Stops it for good."""


class Peer(ABC):
    """A program that can serve the benchmark's models. What it needs lies under `root`."""

    name: ClassVar[str]
    version: ClassVar[str]
    formats: ClassVar[Mapping[Width, Sequence[str]]]  # its own names of weight formats

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def set_up(self) -> None:
        """Installs or builds it, unless that was done."""

    @abstractmethod
    def convert(self, model: str, weight_format: str) -> Path:
        """The model in the peer's own form, made now unless it is there."""

    @abstractmethod
    def server(self, model: str, weight_format: str) -> Server:
        """A server that is not started yet."""


class ServerProcess(Server):
    """A program in a session of its own, its output in a log file."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._argv = list(argv)
        self._log = log
        self._env = os.environ | (env or {})

    @property
    def pid(self) -> int:
        return self._process.pid

    def pause(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=self._stdout(log.fileno()),
                stderr=log,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not self._is_ready():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise self.failure("it did not start")
                time.sleep(0.2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
                if number != signal.SIGCONT:
                    self._process.wait(STOP_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()

    def failure(self, what: str) -> PeerError:
        return PeerError(f"{what}: {' '.join(self._argv)}\n{self._log.read_text()[-3000:]}")

    def _stdout(self, log: int) -> int:
        return log

    @abstractmethod
    def _is_ready(self) -> bool: ...


class HttpServer(ServerProcess):
    """A server with OpenAI's API on loopback."""

    def __init__(
        self, argv: Sequence[str], log: Path, *, port: int, model: str, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(argv, log, env)
        self._port = port
        self._model = model

    def run(self, scenario: Scenario, seed: int) -> Sequence[Answer]:
        return asyncio.run(load(("127.0.0.1", self._port), self._model, scenario, seed))

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
