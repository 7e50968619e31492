"""The JavaScript example of docs/grpc.md, run as it stands there against the stations in their containers."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.containers.compose import GRPC_PORTS, Compose
from tests.docs.pages import DOCS, ROOT
from tests.e2e.client import Client

PACKAGES = Path(__file__).parent / "node_client"

pytestmark = [
    pytest.mark.containers,
    pytest.mark.skipif(not shutil.which("npm"), reason="needs Node.js with npm"),
]


def run_example(road: Compose, folder: Path) -> list[str]:
    """The lines that the example prints, its packages installed in `folder`."""
    (script,) = re.findall(r"^```js\n(.*?)^```$", (DOCS / "grpc.md").read_text(), flags=re.M | re.S)
    for service, port in GRPC_PORTS.items():
        assert f"127.0.0.1:{port}" in script
        script = script.replace(f"127.0.0.1:{port}", road.address(service))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PACKAGES / name, folder)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=180)
    (folder / "client.mjs").write_text(script.replace('["protos"]', f'["{ROOT / "protos"}"]'))
    done = subprocess.run(["node", "client.mjs"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def test_the_example_runs(road: Compose, tmp_path: Path) -> None:
    text, end, cancelled, late, error = await asyncio.to_thread(run_example, road, tmp_path)
    assert text == "The capital of France is Paris."
    assert end == "FINISH_REASON_STOP, 8 tokens"
    assert cancelled == "cancelled: CANCELLED"
    assert late == "too late: DEADLINE_EXCEEDED"
    assert error.startswith("INVALID_ARGUMENT: the prompt is empty")
    async with Client(road) as client:
        await client.wait_idle()
