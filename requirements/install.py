"""Sets up environments for the Makefile: `python requirements/install.py serve|dev|clients`. Standard library only.

serve and dev are .venv. Each step leaves a stamp there with the hash of what it was made from and is left out while
that is unchanged, so that a second run installs nothing. An environment that was moved, or whose Python is gone or
another one, is made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
FOLDERS = {"serve": ".venv", "dev": ".venv", "clients": "build/clients-env"}


class SetupError(Exception):
    """Why there is no environment; the message is for people."""


class Step(NamedTuple):
    """Something to install with pip. `sources` decide whether it is up to date; `makes` must exist afterwards.

    `without` says how things go on where it cannot be installed; nothing else does without its steps. `takes` says why
    a step that shows nothing for a while does so.
    """

    name: str
    sources: list[Path]
    pip_args: list[str]
    makes: Path | None = None
    without: str = ""
    takes: str = ""


def steps(root: Path, lock: str) -> list[Step]:
    """What an environment of `lock` consists of, in the order of installing."""
    pins = root / "requirements"
    if lock == "clients":  # large, and little of it is used: what is imported is compiled then
        return [Step(lock, [pins / "clients.txt"], ["--no-compile", "-r", str(pins / "clients.txt")])]
    protos = sorted((root / "protos").rglob("*.proto"))
    return [
        Step("torch", [pins / "torch.txt"], ["-r", str(pins / "torch.txt")], takes="190 MB to download"),
        Step(lock, [pins / f"{lock}.txt"], ["-r", str(pins / f"{lock}.txt")], takes="some 80 packages"),
        Step("model", [pins / "model.txt"], ["-r", str(pins / "model.txt")], takes="98 MB to download"),
        Step(
            "postroad",
            [root / "pyproject.toml", root / "protos" / "build.py", *protos],
            ["-e", str(root)],
            makes=root / "services" / "pb",
        ),
        native_step(root),
    ]


def native_step(root: Path) -> Step:
    """The CPU executor, which is compiled here."""
    folder = root / "services" / "engine" / "native"
    files = [folder / "pyproject.toml", folder / "CMakeLists.txt"]
    for part in ("src", "postroad_native"):
        files += (path for path in (folder / part).rglob("*") if path.suffix in (".cpp", ".h", ".py", ".typed"))
    return Step(
        "native",
        sorted(files),
        ["--force-reinstall", str(folder)],  # its version stays the same when its sources change
        without="the engine runs models with torch, several times slower. Are there a C++ compiler and Python's "
        "headers? (Debian: g++, python3-dev)",
        takes="compiled here, about a minute",
    )


def digest(root: Path, sources: list[Path]) -> str:
    """A hash over names and contents."""
    total = hashlib.sha256()
    for path in sources:
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def check_python(version: tuple[int, ...]) -> None:
    """Raises SetupError for a Python that Postroad does not run on."""
    if not OLDEST <= tuple(version[:2]) <= NEWEST:
        wanted = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise SetupError(
            f"Postroad needs Python {wanted}, and {sys.executable} is {version[0]}.{version[1]}. "
            "Name another one: make PYTHON=/path/to/python3.11 …"
        )


class Environment:
    """A virtual environment of the repository at `root`."""

    def __init__(self, root: Path, folder: str = ".venv") -> None:
        self.root = root
        self.path = root / folder
        self.python = self.path / "bin" / "python"
        self._stamps = self.path / "stamps"
        self._identity = f"{root}\nPython {sys.version_info[0]}.{sys.version_info[1]}\n"

    def staleness(self) -> str:
        """Why the environment has to be made anew; empty when it can be used."""
        if not self.path.exists():
            return "there is none"
        try:
            code = "import sys; print('Python %d.%d' % sys.version_info[:2])"
            version = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return "its Python does not run"
        identity = self._stamps / "identity"
        # Without a stamp it is one that somebody made by hand here: used as it is.
        made_for = identity.read_text() if identity.exists() else f"{self.root}\n{version}"
        if made_for != self._identity:
            return "it was made for " + made_for.strip().replace("\n", ", ")
        return ""

    def prepare(self) -> None:
        """Makes the environment where there is none that can be used. Raises SetupError."""
        if reason := self.staleness():
            print(f"making {self.path.name} ({reason})", flush=True)
            if self.path.exists():
                shutil.rmtree(self.path)
            try:
                venv.EnvBuilder(with_pip=True).create(self.path)
            except subprocess.CalledProcessError as error:
                raise SetupError("python -m venv failed; on Debian and Ubuntu install python3-venv") from error
        self._stamps.mkdir(exist_ok=True)
        (self._stamps / "identity").write_text(self._identity)

    def is_done(self, step: Step) -> bool:
        """Whether the step was done with its sources as they are now."""
        stamp = self._stamps / step.name
        made = step.makes is None or step.makes.exists()
        return made and stamp.exists() and stamp.read_text() == digest(self.root, step.sources)

    def install(self, step: Step, torch_index: str) -> None:
        """Does the step and leaves its stamp. Raises SetupError unless things go on without it: then it is tried again
        the next time."""
        print(f"installing {step.name}{f' ({step.takes})' if step.takes else ''}", flush=True)
        before = digest(self.root, step.sources)
        done = self._pip(step.pip_args)
        if not done and step.name == "torch" and torch_index:
            print(f"no such torch in pip's own sources; trying {torch_index}", flush=True)
            done = self._pip(["--extra-index-url", torch_index, *step.pip_args])
        if not done and step.without:
            print(f"warning: pip could not build {step.name}; {step.without}", file=sys.stderr, flush=True)
            return
        if not done:
            raise SetupError(f"pip could not install {step.name}; what it said stands above")
        (self._stamps / step.name).write_text(before)

    def _pip(self, args: list[str]) -> bool:
        # The lock files name every package: nothing is left to resolve.
        command = [self.python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", *args]
        return subprocess.run(command, cwd=self.root, check=False).returncode == 0


def main(lock: str) -> int:
    """Brings the environment up to date; returns the exit code."""
    try:
        check_python(sys.version_info[:2])
        environment = Environment(ROOT, FOLDERS[lock])
        environment.prepare()
        for step in steps(ROOT, lock):
            if not environment.is_done(step):
                environment.install(step, os.environ.get("TORCH_INDEX_URL", ""))
    except SetupError as error:
        print(f"postroad: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in FOLDERS:
        sys.exit(f"usage: python requirements/install.py {'|'.join(FOLDERS)}")
    sys.exit(main(sys.argv[1]))
