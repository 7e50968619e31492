"""One launcher per folder of logs and process ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.launcher.run_dir import RunDirError, RunDirInUse, hold
from tests.support.ports import free_ports
from tests.support.processes import Program

HOLDER = "import signal, sys; from pathlib import Path; from services.launcher.run_dir import hold\n"
HOLDER += "with hold(Path(sys.argv[1])): print('held', flush=True); signal.pause()"


def test_the_folder_is_made_and_has_the_process_id_while_it_is_held(tmp_path: Path) -> None:
    run_dir = tmp_path / "a" / "b"
    for _ in range(2):
        with hold(run_dir):
            assert (run_dir / "launcher.pid").read_text() == f"{os.getpid()}\n"
        assert not (run_dir / "launcher.pid").exists()


def test_a_second_launcher_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    with Program([sys.executable, "-c", HOLDER, str(tmp_path)]) as holder:
        holder.wait_for_line(lambda line: line == "held", "the folder is held")
        logs = tmp_path / "logs"
        logs.mkdir()
        (logs / "engine.log").write_text("of the first\n")
        names = ("--port", "--engine-port", "--tokenizer-port", "--detokenizer-port")
        ports = [f"{name}={port}" for name, port in zip(names, free_ports(4), strict=True)]
        command = [sys.executable, "-m", "services.launcher", "--no-metrics", "--run-dir", str(tmp_path), *ports]
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert second.returncode == 1
        assert second.stderr == (
            f"postroad: {tmp_path} is in use by the launcher with process id {holder.pid}; give another --run-dir\n"
        )
        assert (logs / "engine.log").read_text() == "of the first\n"
        assert (tmp_path / "launcher.pid").read_text() == f"{holder.pid}\n"


@pytest.mark.parametrize("below", ["file", "file/folder"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match=f"--run-dir {tmp_path / below} cannot be used"), hold(tmp_path / below):
        pass


def test_a_launcher_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    with Program([sys.executable, "-c", HOLDER, str(tmp_path)]) as holder:
        holder.wait_for_line(lambda line: line == "held", "the folder is held")
        with pytest.raises(RunDirInUse, match=str(holder.pid)), hold(tmp_path):
            pass
        holder.send(signal.SIGKILL)
        holder.wait()
    with hold(tmp_path):
        assert (tmp_path / "launcher.pid").read_text() == f"{os.getpid()}\n"
