"""What `make serve` and `make chat` pass on: only what was given, so that the launcher's variables count."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def command(target: str, *variables: str, **env: str) -> list[str]:
    """The arguments of the command that the target would run."""
    names = {"PORT", "MODEL", "URL", "MAKEFLAGS"}
    clean = {key: value for key, value in os.environ.items() if key not in names and not key.endswith("_FLAGS")}
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", target, *variables],
        cwd=ROOT, env=clean | env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = (line for line in done.stdout.replace("\\\n", " ").splitlines() if "-m services." in line)
    words = shlex.split(line)
    return words[words.index("-m") + 2 :]


def test_serve_passes_nothing_that_was_not_given() -> None:
    assert command("serve") == []


def test_serve_passes_what_was_given() -> None:
    given = command("serve", "PORT=9000", "MODEL=a b", "ENGINE_FLAGS=--dtype float32", "LAUNCHER_FLAGS=--no-metrics")
    assert given == ["--port=9000", "--model=a b", "--engine-flags=--dtype float32", "--no-metrics"]


@pytest.mark.parametrize(
    ("variables", "env", "port"),
    [((), {}, 8000), (("PORT=9000",), {}, 9000), ((), {"POSTROAD_LAUNCHER_PORT": "8765"}, 8765)],
)
def test_chat_looks_where_serve_listens(variables: tuple[str, ...], env: dict[str, str], port: int) -> None:
    assert command("chat", *variables, **env) == [f"--url=http://127.0.0.1:{port}"]
