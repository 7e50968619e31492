"""Environments of the peers' own: nothing of theirs goes into .venv."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

TORCH = "torch==2.13.0+cpu"


def environment(folder: Path, packages: Sequence[str], without: Sequence[str] = ()) -> Path:
    """The interpreter of a virtual environment with these packages, made now unless it is there.

    `without` are packages that come along as dependencies and are taken out again.
    """
    python = folder / "bin" / "python"
    stamp = folder / "installed.txt"
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {folder}", flush=True)
        venv.EnvBuilder(with_pip=True, clear=True).create(folder)
        _install(python, packages)
        for package in without:
            pip(python, "uninstall", "--yes", package)
        stamp.write_text(wanted)
    return python


def _install(python: Path, packages: Sequence[str]) -> None:
    try:
        pip(python, "install", *packages)
    except subprocess.CalledProcessError:
        # torch's CPU build is not in the index of packages in general.
        if TORCH not in packages or not (index := os.environ.get("TORCH_INDEX_URL")):
            raise
        pip(python, "install", "--extra-index-url", index, *packages)


def pip(python: Path, command: str, *arguments: str) -> None:
    """Raises CalledProcessError."""
    subprocess.run([python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments], check=True)
