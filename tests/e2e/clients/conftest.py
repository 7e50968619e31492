"""Programs of other projects' clients, each run in their own environment against a running road.

A program gets the road's URL as its argument and prints one JSON object: what it saw.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import clients_environment

PROGRAMS = Path(__file__).parent / "programs"
# Nothing is asked of the network, and nobody is told of the run.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": "none",
    "PYTHONDONTWRITEBYTECODE": "",  # these are large: compiled once
}

RunProgram = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def clients_env() -> Path:
    """The folder of the clients' environment."""
    return clients_environment()


@pytest.fixture
def run_program(clients_env: Path) -> RunProgram:
    def run(name: str, *arguments: str) -> dict[str, Any]:
        """What a Python program printed."""
        return said_by(clients_env / "bin" / "python", str(PROGRAMS / name), *arguments)

    return run


def said_by(*command: str | Path, cwd: Path | None = None) -> dict[str, Any]:
    """The JSON object on the last line that a program prints."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | QUIET, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said
