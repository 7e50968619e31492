"""The README's examples, run as they are pasted; only the port is that of the test's road."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support.stack import Stack

README = Path(__file__).resolve().parents[2] / "README.md"
DEFAULT_ADDRESS = "127.0.0.1:8000"
SECONDS = 120


def example(language: str, stack: Stack) -> str:
    """The README's only code block of a language, for `stack`."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), flags=re.M | re.S)
    assert DEFAULT_ADDRESS in block
    return str(block).replace(DEFAULT_ADDRESS, stack.address("gateway"))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl(real_stack: Stack) -> None:
    answer = json.loads(run("bash", "-c", example("sh", real_stack).replace("curl ", "curl -sS ", 1)))
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_openai_python(real_stack: Stack) -> None:
    assert "Paris" in run(sys.executable, "-c", example("python", real_stack))


def test_chat(real_stack: Stack) -> None:
    lines = "What is the capital of France?\n/quit\n"
    command = [sys.executable, "-m", "services.chat", "--url", real_stack.url, "--temperature=0", "--max-tokens=64"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
