"""A service as a process of the operating system: started in a group of its own, read line by line, ended."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

LAST_LINES = 20
LAST_OUTPUT_SECONDS = 2.0
READ_BYTES = 65536
MAX_LINE = 65536  # bytes; a longer one, a progress bar's for instance, is cut into several
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What to start. `entrance` marks the service that clients talk to: it is stopped before the others."""

    name: str
    argv: tuple[str, ...]
    entrance: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `returncode` is negative for a signal, as in subprocess."""

    returncode: int
    last_lines: tuple[bytes, ...] = ()

    def __str__(self) -> str:
        if self.returncode >= 0:
            return f"exit code {self.returncode}"
        try:
            return f"killed by {signal.Signals(-self.returncode).name}"
        except ValueError:
            return f"killed by signal {-self.returncode}"


class ServiceProcess:
    """A started process. It dies with this one, even when this one is killed (Linux)."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: asyncio.StreamReader, on_line: Callable[[bytes], None]
    ):
        self._process = process
        self._last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._on_line = on_line
        self._exit = asyncio.create_task(self._watch(asyncio.create_task(self._read(output))))

    @classmethod
    async def start(cls, spec: ServiceSpec, on_line: Callable[[bytes], None]) -> Self:
        """Starts the process; `on_line` gets each line of its output, without the line end. Raises OSError."""
        read_end, write_end = os.pipe()
        try:
            # The pipe is ours and not asyncio's: asyncio may wait for a pipe's end before it tells of an exit, and a
            # grandchild that lives on holds the pipe open.
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                process_group=0,  # Ctrl-C in the terminal reaches the launcher alone
                preexec_fn=_die_with(os.getpid()),
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        output = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", buffering=0)
        )
        return cls(process, output, on_line)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    async def wait(self) -> Exit:
        """Waits for the end of the process and of its output. Any number of callers may wait."""
        return await asyncio.shield(self._exit)

    async def stop(self, grace: float) -> Exit:
        """SIGTERM, and SIGKILL when the process is still there after `grace` seconds."""
        if self._process.returncode is None:
            # Not the process's own terminate(): it asks for the exit code first, and asyncio's watcher then finds none.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """Kills the whole group at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _watch(self, reading: asyncio.Task[None]) -> Exit:
        returncode = await self._process.wait()
        self.kill()  # what the process started and left behind in its group
        await asyncio.wait([reading], timeout=LAST_OUTPUT_SECONDS)
        reading.cancel()
        return Exit(returncode, tuple(self._last_lines))

    async def _read(self, output: asyncio.StreamReader) -> None:
        rest = b""
        while data := await output.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)
            if len(rest) >= MAX_LINE:
                self._take(rest)
                rest = b""
        if rest:
            self._take(rest)

    def _take(self, line: bytes) -> None:
        self._last_lines.append(line)
        self._on_line(line)


def _die_with(parent: int) -> Callable[[], None]:
    """For preexec_fn: the kernel kills the child when `parent` is gone, however it ended."""
    prctl = ctypes.CDLL(None).prctl  # looked up here: nothing but the call itself may happen between fork and exec

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return before_exec
