"""What is in the images, and what is not."""

from __future__ import annotations

import json

import pytest

from tests.containers.compose import Compose, docker

pytestmark = pytest.mark.containers

MB = 1_000_000
# Over the base image, bytes.
LARGEST = {"gateway": 200 * MB, "detokenizer": 200 * MB, "tokenizer": 400 * MB, "engine-cpu": 1500 * MB}
SERVICES = {"gateway": "gateway", "detokenizer": "detokenizer", "tokenizer": "tokenizer", "engine-cpu": "engine"}


def size(image: str) -> int:
    return int(docker("image", "inspect", "--format={{.Size}}", image))


def run(image: str, *command: str) -> str:
    """What a command prints in a fresh container of the image."""
    return docker("run", "--rm", f"--entrypoint={command[0]}", f"postroad-test-{image}:latest", *command[1:])


@pytest.mark.parametrize("image", LARGEST)
def test_size_over_the_base(project: Compose, image: str) -> None:
    over = size(f"postroad-test-{image}:latest") - size("python:3.11-slim-bookworm")
    print(f"\n{image}: {over / MB:.0f} MB over the base")
    assert over <= LARGEST[image]


@pytest.mark.parametrize("image", LARGEST)
def test_torch_is_in_the_engine_alone_and_triton_and_compilers_are_nowhere(project: Compose, image: str) -> None:
    code = (
        "import importlib.util as u, json, shutil, os; print(json.dumps({"
        "'torch': u.find_spec('torch') is not None, 'triton': u.find_spec('triton') is not None,"
        "'compiler': bool(shutil.which('g++') or shutil.which('cc')), 'uid': os.getuid(),"
        "'services': sorted(n for n in os.listdir('/app/services') if not n.startswith('_'))}))"
    )
    found = json.loads(run(image, "python", "-c", code))
    assert found == {
        "torch": image == "engine-cpu",
        "triton": False,
        "compiler": False,
        "uid": 10001,
        "services": sorted(["common", "pb", SERVICES[image]]),
    }


def test_the_engine_runs_its_native_code(project: Compose) -> None:
    assert '"executor": "native"' in project.logs("engine")


@pytest.mark.parametrize("image", LARGEST)
def test_labels_name_the_image(project: Compose, image: str) -> None:
    labels = json.loads(docker("image", "inspect", "--format={{json .Config.Labels}}", f"postroad-test-{image}:latest"))
    assert labels["org.opencontainers.image.title"] == f"postroad-{image}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
