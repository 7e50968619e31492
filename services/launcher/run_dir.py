"""The launcher's folder of logs and process ids, held by one launcher at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

PID_FILE = "launcher.pid"
LOCK_FILE = "launcher.lock"  # stays: who removes a lock file may remove the one that another has just taken


class RunDirError(Exception):
    """The folder cannot be used; the message is for people."""


class RunDirInUse(RunDirError):
    """Another launcher runs with it."""


@contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Makes the folder and holds it; it has the launcher's process id in launcher.pid meanwhile. Raises RunDirError.

    The lock is the process's: it is gone when the process is, however that ended.
    """
    pid_file = run_dir / PID_FILE
    with _open_lock(run_dir) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirInUse(
                f"{run_dir} is in use by the launcher{_id_in(pid_file)}; give another --run-dir"
            ) from None
        pid_file.write_text(f"{os.getpid()}\n")
        try:
            yield
        finally:
            pid_file.unlink(missing_ok=True)


def _open_lock(run_dir: Path) -> TextIO:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        return (run_dir / LOCK_FILE).open("w")
    except OSError as error:
        raise RunDirError(f"--run-dir {run_dir} cannot be used: {error.strerror}") from error


def _id_in(pid_file: Path) -> str:
    try:
        return f" with process id {int(pid_file.read_text())}"
    except (OSError, ValueError):  # it has just started, or is about to end
        return ""
