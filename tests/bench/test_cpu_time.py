"""CPU time of process trees."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.bench.cpu_time import machine_seconds, tree, tree_seconds


def _burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_child_that_works_counts() -> None:
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    before = tree_seconds(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in tree(os.getpid())
        assert tree_seconds(os.getpid()) - before >= 0.15
        assert tree_seconds(child.pid) >= 0.15
        child.communicate(b"\n")
    assert child.pid not in tree(os.getpid())


def test_the_machine_is_busy_while_we_are() -> None:
    before = machine_seconds(), tree_seconds(os.getpid())
    _burn(0.3)
    assert tree_seconds(os.getpid()) - before[1] == pytest.approx(0.3, abs=0.1)
    assert machine_seconds() - before[0] >= 0.2


def test_a_process_that_is_gone_has_no_time() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert tree_seconds(child.pid) == 0
