"""What the machine or the container offers, read from files as the kernel writes them."""

from __future__ import annotations

import pytest

from services.engine.hardware import all_memory, computes_bfloat16, free_memory, has_matrix_unit, usable_cores

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    """A machine with 8 GiB available, without a cgroup."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroups.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemFree: 1024 kB\nMemAvailable: {8 << 20} kB\n")
    (proc / "self" / "cgroup").write_text("")
    return proc, cgroups


def write_group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_a_cgroup_what_the_machine_has_available(machine):
    assert free_memory(*machine) == 8 * GIB
    assert all_memory(*machine) == 16 * GIB


def test_a_cgroup_2_limit_less_its_use_with_file_cache_counted_as_free(machine):
    proc, cgroups = machine
    (proc / "self" / "cgroup").write_text("0::/box\n")
    stat = f"anon 5\ninactive_file {GIB // 2}\n"
    write_group(cgroups / "box", memory__max=f"{4 * GIB}\n", memory__current=f"{2 * GIB}\n", memory__stat=stat)
    assert free_memory(*machine) == 2 * GIB + GIB // 2
    assert all_memory(*machine) == 4 * GIB


def test_a_limit_further_up_counts_too(machine):
    proc, cgroups = machine
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    write_group(cgroups / "outer", memory__max=f"{GIB}", memory__current="0", memory__stat="")
    write_group(cgroups / "outer" / "inner", memory__max="max\n", memory__current="0", memory__stat="")
    assert free_memory(*machine) == GIB


def test_inside_a_container_whose_own_group_is_the_mounted_root(machine):
    proc, cgroups = machine
    (proc / "self" / "cgroup").write_text("0::/docker/0123\n")
    write_group(cgroups, memory__max=f"{2 * GIB}", memory__current=f"{GIB}", memory__stat="")
    assert free_memory(*machine) == GIB


def test_a_cgroup_1_limit(machine):
    proc, cgroups = machine
    (proc / "self" / "cgroup").write_text("4:memory:/box\n3:cpuset:/\n")
    write_group(
        cgroups / "memory" / "box",
        memory__limit_in_bytes=f"{3 * GIB}",
        memory__usage_in_bytes=f"{2 * GIB}",
        memory__stat=f"total_inactive_file {GIB}\n",
    )
    write_group(
        cgroups / "memory",
        memory__limit_in_bytes="9223372036854771712",
        memory__usage_in_bytes=f"{9 * GIB}",
        memory__stat="",
    )
    assert free_memory(*machine) == 2 * GIB


@pytest.fixture
def many_cores(monkeypatch):
    """A process that may run on eight cores, whatever this machine has."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("350000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8)],
)
def test_whole_cores_of_a_cgroup_2_quota_count(machine, many_cores, cpu_max, cores):
    proc, cgroups = machine
    (proc / "self" / "cgroup").write_text("0::/box\n")
    write_group(cgroups / "box", cpu__max=f"{cpu_max}\n")
    assert usable_cores(*machine) == cores


def test_the_tightest_cpu_quota_counts(machine, many_cores):
    proc, cgroups = machine
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    write_group(cgroups / "outer", cpu__max="300000 100000")
    write_group(cgroups / "outer" / "inner", cpu__max="1000000 200000")
    assert usable_cores(*machine) == 3


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("400000", 4)])
def test_a_cgroup_1_cpu_quota(machine, many_cores, quota, cores):
    proc, cgroups = machine
    (proc / "self" / "cgroup").write_text("5:cpu,cpuacct:/box\n4:memory:/box\n")
    write_group(cgroups / "cpu" / "box", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert usable_cores(*machine) == cores


def test_without_a_quota_the_cores_that_the_process_may_run_on(machine, many_cores):
    assert usable_cores(*machine) == 8


def test_this_machine_has_some_memory_and_a_core():
    assert free_memory() > 1 << 20
    assert usable_cores() >= 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", True),
        ("flags\t\t: fpu amx_bf16", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 avx512f", False),
        ("model name\t: avx512_bf16", False),
    ],
)
def test_bfloat16_by_the_cpu_s_flags(tmp_path, line, expected):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert computes_bfloat16(tmp_path) is expected


def test_a_matrix_unit_by_the_cpu_s_flags(tmp_path):
    for flags, expected in (("fpu avx512_bf16 amx_bf16 amx_tile", True), ("fpu avx512_bf16", False)):
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
        assert has_matrix_unit(tmp_path) is expected
