"""The Python example of docs/grpc.md, run as it stands there; only the ports are those of the test's road."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = {"tokenizer": "127.0.0.1:50051", "engine": "127.0.0.1:50052", "detokenizer": "127.0.0.1:50053"}


def test_the_example_runs(scripted_stack: Stack) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "grpc.md").read_text(), flags=re.M | re.S)
    script = "\n".join(blocks)
    for service, address in ADDRESSES.items():
        assert address in script
        script = script.replace(address, scripted_stack.address(service))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    text, end, cancelled, error, services = done.stdout.splitlines()
    assert "post rider" in text
    assert end == "FINISH_REASON_LENGTH, 32 tokens"
    assert cancelled == "cancelled: CANCELLED"
    assert error == "INVALID_ARGUMENT, postroad, INVALID_ARGUMENT, prompt_ids"
    assert {"postroad.v1.Detokenizer", "postroad.v1.Debug", "grpc.health.v1.Health"} <= set(services.split(", "))
