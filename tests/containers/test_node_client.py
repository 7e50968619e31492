"""Node.js with the .proto files alone against the stations in their containers: the example of docs/grpc.md as it
stands there, and every station with metadata, with a deadline and cancelled."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.containers.compose import GRPC_PORTS, Compose
from tests.docs.pages import DOCS, ROOT
from tests.e2e.client import Client

PACKAGES = Path(__file__).parent / "node_client"

pytestmark = pytest.mark.containers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the client's packages are installed."""
    if not shutil.which("npm"):
        pytest.skip("needs Node.js with npm")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", "calls.mjs"):
        shutil.copy(PACKAGES / name, folder)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=180)
    return folder


async def node(folder: Path, *args: str) -> str:
    """What a script prints."""
    process = await asyncio.create_subprocess_exec(
        "node", *args, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(120):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_the_example_runs(road: Compose, folder: Path) -> None:
    (script,) = re.findall(r"^```js\n(.*?)^```$", (DOCS / "grpc.md").read_text(), flags=re.M | re.S)
    for service, port in GRPC_PORTS.items():
        assert f"127.0.0.1:{port}" in script
        script = script.replace(f"127.0.0.1:{port}", road.address(service))
    (folder / "client.mjs").write_text(script.replace('["protos"]', f'["{ROOT / "protos"}"]'))
    text, end, cancelled, late, error = (await node(folder, "client.mjs")).splitlines()
    assert text == "The capital of France is Paris."
    assert end == "FINISH_REASON_STOP, 8 tokens"
    assert cancelled == "cancelled: CANCELLED"
    assert late == "too late: DEADLINE_EXCEEDED"
    assert error.startswith("INVALID_ARGUMENT: the prompt is empty")
    async with Client(road) as client:
        await client.wait_idle()


STATUS = {"call": "OK", "deadline": "DEADLINE_EXCEEDED", "cancel": "CANCELLED"}
SERVED = {"tokenizer": "ok", "engine": "length", "detokenizer": "length"}  # how a call that was not ended is logged


async def test_every_station_with_metadata_and_a_deadline_and_cancelled(road: Compose, folder: Path) -> None:
    addresses = [road.address(service) for service in SERVED]
    found = json.loads(await node(folder, "calls.mjs", str(ROOT / "protos"), *addresses, "from-node"))
    assert found == {f"{service}.{what}": status for service in SERVED for what, status in STATUS.items()}
    async with Client(road) as client:
        await client.wait_idle()
    for service, served in SERVED.items():
        outcomes = logged_outcomes(road, service)
        assert outcomes.pop(f"from-node-{service}.call") == served
        # A deadline that passes ends the call at both ends, and which of them is first is not known.
        assert outcomes.pop(f"from-node-{service}.deadline") in ("cancelled", "deadline_exceeded")
        assert outcomes.pop(f"from-node-{service}.cancel") == "cancelled"
        assert all(service == "engine" and of.startswith("from-node-detokenizer.") for of in outcomes)  # handed on


def logged_outcomes(road: Compose, service: str) -> dict[str, str]:
    """How a station says that the calls of this client ended, by the id that their metadata gave."""
    lines = [json.loads(line) for line in re.findall(r'\{.*"from-node-.*\}', road.logs(service))]
    return {line["request_id"]: line["outcome"] for line in lines if line["event"] == "request"}


@pytest.mark.parametrize("service", SERVED)
def test_reflection_describes_every_method(road: Compose, service: str) -> None:
    with grpc.insecure_channel(road.address(service)) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        full_name = f"postroad.v1.{service.capitalize()}"
        assert full_name in database.get_services()
        described = DescriptorPool(database).FindServiceByName(full_name)
        pages = (DOCS / "grpc.md").read_text()
        assert described.methods
        assert all(f"`{described.name}.{method.name}`" in pages for method in described.methods)
