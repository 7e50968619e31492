"""What this machine, or the container's share of it, offers: free memory, cores, bfloat16 arithmetic."""

from __future__ import annotations

import os
from pathlib import Path

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # the last is arm64's
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge number


def computes_bfloat16(proc: Path = Path("/proc")) -> bool:
    """Whether the CPU multiplies bfloat16 in hardware; where it does not, float32 is faster."""
    for line in (proc / "cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return not _BFLOAT16_FLAGS.isdisjoint(value.split())
    return False


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def free_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can still be allocated: the machine's, or what the tightest cgroup leaves, whichever is less."""
    return min([_machine_available(proc), *_cgroup_headrooms(proc, cgroups)])


def _machine_available(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{proc / 'meminfo'} has no MemAvailable")


def _cgroup_headrooms(proc: Path, cgroups: Path) -> list[int]:
    """Bytes left in each cgroup, version 1 or 2, from the process's own up to the root, that has a limit."""
    headrooms = []
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            base, limit, usage, cache = cgroups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, cache = cgroups / "memory", "total_inactive_file"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        own = base / name.lstrip("/")
        # Inside a container the own group may be mounted as the root, so that its path from outside does not exist.
        for group in {own, *own.parents, base}:
            if group.is_relative_to(base) and (group / limit).exists():
                headrooms.append(_headroom(group, limit, usage, cache))
    return headrooms


def _headroom(group: Path, limit_name: str, usage_name: str, cache_name: str) -> int:
    limit = (group / limit_name).read_text().strip()
    if limit == "max" or int(limit) >= _UNLIMITED:
        return _UNLIMITED
    usage = int((group / usage_name).read_text())
    reclaimable = 0  # file cache that the kernel gives back before it refuses memory
    for line in (group / "memory.stat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == cache_name:
            reclaimable = int(value)
    return max(0, int(limit) - usage + reclaimable)
