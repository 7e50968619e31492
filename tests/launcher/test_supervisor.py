"""The supervisor with small real services; the program under test is tests/launcher/fake_road.py."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from services.launcher.logs import MergedLog
from services.launcher.process import MAX_LINE, ServiceSpec
from services.launcher.supervisor import CannotStart, Deaths, RestartPolicy, Supervisor
from tests.support.processes import Program, is_alive, wait_until

STEADY = "serve()"


class FakeRoad(Program):
    """The program with its log read as JSON."""

    def __init__(self, run_dir: Path, ready_timeout: float = 60.0, **services: str) -> None:
        self.run_dir = run_dir
        listed = [f"{name}={code}" for name, code in services.items()]
        super().__init__([sys.executable, "-m", "tests.launcher.fake_road", str(run_dir), str(ready_timeout), *listed])

    def wait_for_event(self, event: str) -> dict[str, Any]:
        line = self.wait_for_line(lambda line: f'"event": "{event}' in line, event)
        entry: dict[str, Any] = json.loads(line)
        return entry

    def wait_for_output(self, start: str) -> str:
        """A line that a service wrote in no form of the log's."""
        line = self.wait_for_line(lambda line: f'"line": "{start}' in line, start)
        return str(json.loads(line)["line"])

    def outputs(self, end: str) -> list[str]:
        lines = [str(json.loads(line).get("line", "")) for line in self.lines]
        return [line for line in lines if line.endswith(end)]

    def service_pid(self, name: str) -> int:
        return int((self.run_dir / f"{name}.pid").read_text())


def test_one_that_dies_before_it_was_ready_stops_all(tmp_path: Path) -> None:
    with FakeRoad(tmp_path, gateway=STEADY, engine="print('no such model'); sys.exit(3)") as road:
        gateway = road.wait_for_event("started gateway")["pid"]
        assert road.wait() == 1
        assert json.loads(road.lines[-1])["event"] == (
            "gave up: engine died before it was ever ready (exit code 3): no such model"
        )
        assert sum("no such model" in line for line in road.lines) == 3, "said, with the death, and at the end"
        assert not is_alive(gateway)


def test_not_ready_in_time_is_a_failure(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nwhile True: signal.pause()"
    with FakeRoad(tmp_path, ready_timeout=1.5, gateway=STEADY, engine=code) as road:
        assert "engine" in road.wait_for_event("not ready yet")["missing"], "told while it waits"
        assert road.wait() == 1
        assert "gave up: not ready after 1.5 s: engine" in road.lines[-1], "and at the end"


def test_a_line_without_an_end_is_shown_in_parts(tmp_path: Path) -> None:
    """As progress bars write it: nothing of it may pile up."""
    code = f"print('x' * {3 * MAX_LINE}, end='', flush=True)\nserve()"
    with FakeRoad(tmp_path, gateway=STEADY, engine=code) as road:
        assert len(road.wait_for_output("xxx")) >= MAX_LINE
        road.wait_for_event("ready")


def test_a_service_that_the_system_does_not_start_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        log = MergedLog(tmp_path, ["engine"], io.StringIO(), "json")
        supervisor = Supervisor(
            [ServiceSpec("engine", (str(tmp_path / "nothing"),))],
            log,
            tmp_path,
            why_not_ready=lambda: asyncio.sleep(0, ""),
            on_ready=lambda: None,
            ready_timeout=10,
            stop_timeout=10,
            policy=RestartPolicy(),
        )
        await supervisor.run()

    with pytest.raises(CannotStart, match=r"^engine cannot be started: No such file or directory$"):
        asyncio.run(run())


def test_one_that_dies_later_is_restarted_and_its_last_error_is_shown(tmp_path: Path) -> None:
    with FakeRoad(tmp_path, gateway=STEADY, engine="print('run', runs())\nserve()") as road:
        road.wait_for_event("ready")
        first, gateway = road.service_pid("engine"), road.service_pid("gateway")
        (tmp_path / "up" / "engine").unlink()
        os.kill(first, signal.SIGKILL)
        died = road.wait_for_event("engine died")
        assert died["event"] == "engine died (killed by SIGKILL)"
        assert died["last_error"] == "run 1"
        assert road.wait_for_event("restarting engine")["delay_s"] == 0.05
        assert road.wait_for_event("started engine")["pid"] != first
        road.wait_for_event("ready again")
        assert road.service_pid("gateway") == gateway, "the others go on"
        road.send(signal.SIGTERM)
        assert road.wait() == 0
    assert (tmp_path / "logs" / "engine.log").read_text() == "run 1\nrun 2\n"


def test_the_third_death_within_the_window_stops_all(tmp_path: Path) -> None:
    dies = "up()\nprint('run', runs())\nwhile not (RUN_DIR / 'go').exists(): time.sleep(0.01)\nsys.exit(7)"
    with FakeRoad(tmp_path, gateway=STEADY, engine=dies) as road:
        road.wait_for_event("ready")
        gateway = road.service_pid("gateway")
        (tmp_path / "go").touch()
        assert road.wait() == 1
        assert "gave up: engine died 3 times within 60 s (the last time: exit code 7): run 3" in road.lines[-1]
        delays = [json.loads(line)["delay_s"] for line in road.lines if '"event": "restarting' in line]
        assert delays == [0.05, 0.1]
        assert not is_alive(gateway)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_the_entrance_first(tmp_path: Path, number: signal.Signals) -> None:
    tells = (
        "def end(*_):\n    print(NAME, 'ends', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nup()\nwhile True: signal.pause()"
    )
    with FakeRoad(tmp_path, gateway=tells, tokenizer=tells, engine=tells) as road:
        road.wait_for_event("ready")
        pids = [road.service_pid(name) for name in ("gateway", "tokenizer", "engine")]
        road.send(number)
        assert road.wait() == 0
        ends = road.outputs(" ends")
        assert ends[0] == "gateway ends"
        assert sorted(ends[1:]) == ["engine ends", "tokenizer ends"]
        assert not any(map(is_alive, pids))
    assert not list(tmp_path.glob("*.pid"))


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nup()\nwhile True: signal.pause()"
    with FakeRoad(tmp_path, gateway=deaf) as road:
        road.wait_for_event("ready")
        pid = road.service_pid("gateway")
        road.send(signal.SIGINT)
        assert road.wait() == 0
        assert not is_alive(pid)


def test_a_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGTERM, lambda *_: print('not yet', flush=True))\nup()\nwhile True: signal.pause()"
    with FakeRoad(tmp_path, gateway=deaf, engine=STEADY) as road:
        road.wait_for_event("ready")
        pids = [road.service_pid(name) for name in ("gateway", "engine")]
        road.send(signal.SIGINT)
        road.wait_for_output("not yet")
        road.send(signal.SIGINT)
        assert road.wait() == 130
        assert not any(map(is_alive, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_of_another_kind_changes_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """`kill -- -GROUP` reaches the launcher twice, itself and by make, which passes SIGTERM on."""
    slow = (
        "def end(*_):\n"
        "    print('asked', flush=True)\n"
        "    while not (RUN_DIR / 'go').exists(): time.sleep(0.01)\n"
        "    print('in order', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nup()\nwhile True: signal.pause()"
    )
    with FakeRoad(tmp_path, gateway=slow) as road:
        road.wait_for_event("ready")
        road.send(number)
        road.wait_for_output("asked")
        road.send(number)
        (tmp_path / "go").touch()
        assert road.wait() == 0
        assert road.outputs("in order")


def test_a_service_that_is_killed_while_it_is_to_be_stopped_keeps_its_exit_code_and_the_log_its_form(
    tmp_path: Path,
) -> None:
    """The second Ctrl-C kills the engine before its own SIGTERM: asyncio's watcher must be the one to find it dead."""
    deaf = "signal.signal(signal.SIGTERM, lambda *_: print('not yet', flush=True))\nup()\nwhile True: signal.pause()"
    others = {f"station{number}": deaf for number in range(6)}
    with FakeRoad(tmp_path, gateway=deaf, **others) as road:
        road.wait_for_event("ready")
        road.send(signal.SIGINT)
        road.wait_for_output("not yet")
        road.send(signal.SIGINT)
        assert road.wait() == 130
        assert all("event" in json.loads(line) for line in road.lines), "asyncio has nothing to complain of"


def test_an_interrupt_during_the_start_stops_all(tmp_path: Path) -> None:
    waits = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('waits', flush=True)\nwhile True: signal.pause()"
    )
    with FakeRoad(tmp_path, gateway=STEADY, engine=waits) as road:
        road.wait_for_output("waits")
        road.send(signal.SIGINT)
        assert road.wait() == 0


def test_killing_the_launcher_leaves_no_orphan(tmp_path: Path) -> None:
    with FakeRoad(tmp_path, gateway=STEADY, engine=STEADY) as road:
        road.wait_for_event("ready")
        pids = [road.service_pid(name) for name in ("gateway", "engine")]
        assert all(map(is_alive, pids))
        road.send(signal.SIGKILL)
        assert road.wait() == -signal.SIGKILL
        wait_until(lambda: not any(map(is_alive, pids)), "the services died with the launcher")


def test_what_a_dead_service_left_behind_is_killed(tmp_path: Path) -> None:
    code = (
        "if runs() == 1:\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "    print('child', child.pid, flush=True)\n"
        "serve()"
    )
    with FakeRoad(tmp_path, gateway=STEADY, engine=code) as road:
        child = int(road.wait_for_output("child").split()[1])
        road.wait_for_event("ready")
        os.kill(road.service_pid("engine"), signal.SIGKILL)
        road.wait_for_event("engine died")
        wait_until(lambda: not is_alive(child), "the child died with the engine")


def test_delays_double_up_to_the_cap_and_start_over_after_a_long_life() -> None:
    deaths = Deaths(RestartPolicy(first_delay=0.5, max_delay=3.0, max_deaths=3, window=60.0))
    times = [0.0, 31.0, 62.0, 93.0, 124.0]
    assert [deaths.note(now, uptime=30.0) for now in times] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert deaths.note(200.0, uptime=75.0) == 0.5


def test_deaths_count_only_within_the_window() -> None:
    deaths = Deaths(RestartPolicy(max_deaths=3, window=60.0))
    assert deaths.note(0.0, uptime=10.0) is not None
    assert deaths.note(50.0, uptime=49.0) is not None
    assert deaths.note(61.0, uptime=10.0) is not None, "the first one is older than the window"
    assert deaths.note(109.0, uptime=10.0) is None, "three within 59 s"
