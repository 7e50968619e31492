"""CPU time from /proc: of the machine, and of a process with all its descendants."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """CPU seconds that all cores were busy since boot, time stolen by the host included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = _numbers(Path("/proc/stat"), 8)
    return (user + nice + system + irq + softirq + steal) / TICK


def tree_seconds(pid: int) -> float:
    """CPU seconds of the process and its living descendants so far, all threads."""
    return sum(map(_process_seconds, tree(pid)))


def tree(pid: int) -> list[int]:
    """The process and its living descendants."""
    found = [pid]
    for member in found:  # grows while it is walked
        for task in Path(f"/proc/{member}/task").glob("*"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _process_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def _numbers(path: Path, count: int) -> list[int]:
    return [int(word) for word in path.read_text().split("\n", 1)[0].split()[1 : 1 + count]]
