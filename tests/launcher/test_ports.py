"""A port that cannot be had is reported by its service and flag before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.launcher.ports import PortUse, port_problems
from tests.support.ports import free_ports


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_free_ports_have_no_problem() -> None:
    first, second = free_ports(2)
    assert port_problems([PortUse("gateway", "--port", first), PortUse("engine", "--engine-port", second)]) == []


def test_a_port_given_twice_is_named_with_both_services() -> None:
    (port,) = free_ports(1)
    (problem,) = port_problems([PortUse("gateway", "--port", port), PortUse("engine", "--engine-port", port)])
    assert problem == f"port {port} of the engine (--engine-port) is also port {port} of the gateway (--port)"


def test_an_address_of_another_machine_is_reported() -> None:
    (port,) = free_ports(1)
    (problem,) = port_problems([PortUse("gateway", "--port", port, host="192.0.2.1")])
    assert problem.startswith(f"port {port} of the gateway (--port) cannot be used on 192.0.2.1: ")


def test_the_launcher_names_a_busy_port_and_starts_nothing(busy_port: int, tmp_path: Path) -> None:
    gateway, tokenizer, detokenizer = free_ports(3)
    ports = ["--port", gateway, "--tokenizer-port", tokenizer, "--detokenizer-port", detokenizer]
    command = [sys.executable, "-m", "services.launcher", "--no-metrics", "--engine-port", str(busy_port)]
    run = subprocess.run(
        [*command, *map(str, ports), "--run-dir", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    problem, hint = run.stderr.splitlines()
    assert problem == f"postroad: port {busy_port} of the engine (--engine-port) is in use on 127.0.0.1"
    assert "running here already?" in hint
    assert run.stdout == ""
    assert not (tmp_path / "run").exists()
