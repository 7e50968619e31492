"""What this machine, or the container's share of it, offers: free memory, cores, bfloat16 arithmetic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # the last is arm64's
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge number
_CPU_PERIOD_US = 100_000  # where the kernel does not say it


def computes_bfloat16(proc: Path = Path("/proc")) -> bool:
    """Whether the CPU multiplies bfloat16 in hardware; where it does not, float32 is faster."""
    return not _BFLOAT16_FLAGS.isdisjoint(_cpu_flags(proc))


def has_matrix_unit(proc: Path = Path("/proc")) -> bool:
    """Whether the CPU multiplies tiles of bfloat16 (AMX): then long prompts are faster in it than in integers."""
    return "amx_bf16" in _cpu_flags(proc)


def _cpu_flags(proc: Path) -> list[str]:
    for line in (proc / "cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return value.split()
    return []


def usable_cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may keep busy: those it may run on, or what the tightest cgroup's quota is worth.

    A part of a core does not count: with one thread more than that, all wait for whichever is throttled.
    """
    quotas = [int(quota) for group in _cgroups(proc, cgroups, "cpu") if (quota := _cpu_quota(group)) is not None]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def free_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can still be allocated: the machine's, or what the tightest cgroup leaves, whichever is less."""
    headrooms = [room for group in _cgroups(proc, cgroups, "memory") if (room := _headroom(group)) is not None]
    return min([_machine_memory(proc, "MemAvailable"), *headrooms])


def all_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can have at most: the machine's memory, or the tightest cgroup's limit."""
    limits = [limit for group in _cgroups(proc, cgroups, "memory") if (limit := _memory_limit(group)) is not None]
    return min([_machine_memory(proc, "MemTotal"), *limits])


def _machine_memory(proc: Path, which: str) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{proc / 'meminfo'} has no {which}")


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """One group's folder; in version 1 that of the controller that was asked for."""

    path: Path
    version: Literal[1, 2]

    def read(self, name: str) -> str | None:
        """The content of one of its files, None if it has no such file, as for a controller that is not enabled."""
        try:
            return (self.path / name).read_text().strip()
        except FileNotFoundError:
            return None


def _cgroups(proc: Path, cgroups: Path, controller: str) -> Iterator[_Cgroup]:
    """The groups, version 1 or 2, whose limits apply to this process, from its own up to the root."""
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        version: Literal[1, 2]
        if controllers == "":
            base, version = cgroups, 2
        elif controller in controllers.split(","):
            base, version = cgroups / controller, 1
        else:
            continue
        own = base / name.lstrip("/")
        # Inside a container the own group may be mounted as the root, so that its path from outside does not exist.
        for path in {own, *own.parents, base}:
            if path.is_relative_to(base):
                yield _Cgroup(path, version)


def _cpu_quota(group: _Cgroup) -> float | None:
    """How many cores the group may keep busy; None without a limit."""
    if group.version == 2:
        quota, _, period = (group.read("cpu.max") or "max").partition(" ")
    else:
        quota, period = group.read("cpu.cfs_quota_us") or "-1", group.read("cpu.cfs_period_us") or ""
    return None if quota in ("max", "-1") else int(quota) / int(period or _CPU_PERIOD_US)


def _memory_limit(group: _Cgroup) -> int | None:
    """Bytes; None without a limit."""
    limit = group.read("memory.max" if group.version == 2 else "memory.limit_in_bytes")
    if limit is None or limit == "max" or int(limit) >= _UNLIMITED:
        return None
    return int(limit)


def _headroom(group: _Cgroup) -> int | None:
    """Bytes left in the group; None without a limit."""
    limit = _memory_limit(group)
    if limit is None:
        return None
    if group.version == 2:
        usage_name, cache_name = "memory.current", "inactive_file"
    else:
        usage_name, cache_name = "memory.usage_in_bytes", "total_inactive_file"
    reclaimable = 0  # file cache that the kernel gives back before it refuses memory
    for line in (group.read("memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == cache_name:
            reclaimable = int(value)
    return max(0, limit - int(group.read(usage_name) or 0) + reclaimable)
