"""Processes in tests: a program whose output is read as it comes, and which pids still live."""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in ("Z", "X")


def children_of(pid: int) -> list[int]:
    """The pids of the direct children."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Polls until `condition` holds. Raises AssertionError that says `what` was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


class Program:
    """A running program in a process group of its own; its output (both streams) is kept and waited on by line."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
            process_group=0,
        )
        self._new_lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None: the end
        self._at_end = False
        self.lines: list[str] = []  # what `wait_for_line` and `wait` have seen
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._new_lines.put(line.rstrip("\n"))
        self._new_lines.put(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        """All output seen so far."""
        return "\n".join(self.lines)

    def wait_for_line(self, wanted: Callable[[str], bool], what: str, seconds: float = 60.0) -> str:
        """The next line that is `wanted`. Raises AssertionError with the output when it ends or takes too long."""
        deadline = time.monotonic() + seconds
        try:
            while (line := self._next_line(deadline - time.monotonic())) is not None:
                if wanted(line):
                    return line
        except queue.Empty:
            raise AssertionError(f"{what}: not within {seconds} s; output:\n{self.text}") from None
        raise AssertionError(f"{what}: the program ended; output:\n{self.text}")

    def send(self, number: signal.Signals) -> None:
        """A signal to the program alone."""
        self._process.send_signal(number)

    def wait(self, seconds: float = 60.0) -> int:
        """Waits for the end; returns the exit code (negative: a signal). `lines` is complete then."""
        code = self._process.wait(seconds)
        while self._next_line(seconds) is not None:
            pass
        return code

    def _next_line(self, seconds: float) -> str | None:
        """The next line, noted in `lines`; None at the end. Raises queue.Empty."""
        line = None if self._at_end else self._new_lines.get(timeout=max(0.0, seconds))
        if line is None:
            self._at_end = True
        else:
            self.lines.append(line)
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
