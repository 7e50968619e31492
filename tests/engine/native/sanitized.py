"""`make sanitize`: the native executor built with sanitizers, apart from the one in .venv, and its tests run on it.

    python -m tests.engine.native.sanitized address,undefined -k fuzz    # sanitizers, then what pytest takes

A sanitizer's library has to be loaded before all others, into a Python that knows nothing of it; libstdc++ comes with
it, or the sanitizer would not see exceptions. What Python itself leaks is not looked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def build(sanitizers: str) -> Path:
    """Builds the distribution; returns the folder to import it from. Raises CalledProcessError."""
    folder = ROOT / "build" / f"sanitized-{sanitizers.replace(',', '-')}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    settings = (f"cmake.define.POSTROAD_SANITIZE={sanitizers}", f"build-dir={folder / 'cmake'}")
    config = [part for setting in settings for part in ("-C", setting)]
    source = ROOT / "services" / "engine" / "native"
    subprocess.run([*pip, "--target", str(folder / "site"), *config, str(source)], check=True)
    return folder / "site"


def environment(sanitizers: str, site: Path) -> dict[str, str]:
    """In which Python imports the sanitized executor from `site`."""
    libraries = [_library(LIBRARIES[sanitizer]) for sanitizer in sanitizers.split(",")]
    preload = " ".join([*libraries, _library("libstdc++.so.6")])
    return os.environ | OPTIONS | {"LD_PRELOAD": preload, "PYTHONPATH": str(site)}


def _library(name: str) -> str:
    """Where the compiler has it."""
    return subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()


def main(sanitizers: str, pytest_arguments: Sequence[str]) -> int:
    """Returns pytest's exit code."""
    site = build(sanitizers)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *pytest_arguments]
    return subprocess.run(pytest, cwd=ROOT, env=environment(sanitizers, site), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
