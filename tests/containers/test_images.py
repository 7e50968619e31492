"""What is in the images, and what is not."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from pathlib import Path

import pytest

import services
from tests.containers.compose import Compose, docker
from tests.docs.pages import ROOT, table

pytestmark = pytest.mark.containers

MB = 1_000_000
# Over the base image, bytes.
LARGEST = {"gateway": 200 * MB, "detokenizer": 200 * MB, "tokenizer": 400 * MB, "engine-cpu": 1500 * MB}
SERVICES = {"gateway": "gateway", "detokenizer": "detokenizer", "tokenizer": "tokenizer", "engine-cpu": "engine"}


CONTEXT = ("Dockerfile.cpu", ".dockerignore", "docker-compose.yml", "protos", "requirements", "services")


def size(image: str) -> int:
    return int(docker("image", "inspect", "--format={{.Size}}", image))


def over_the_base(image: str) -> int:
    return size(f"postroad-test-{image}:latest") - size("python:3.11-slim-bookworm")


def run(image: str, *command: str) -> str:
    """What a command prints in a fresh container of the image."""
    return docker("run", "--rm", f"--entrypoint={command[0]}", f"postroad-test-{image}:latest", *command[1:])


@pytest.mark.parametrize("image", LARGEST)
def test_size_over_the_base_is_bounded_and_as_the_page_says(project: Compose, image: str) -> None:
    over = over_the_base(image)
    print(f"\n{image}: {over / MB:.0f} MB over the base")
    assert over <= LARGEST[image]
    [listed] = [
        row["over the base"] for row in table("deployment.md", "Containers") if row["image"] == f"`postroad-{image}`"
    ]
    assert float(listed.removesuffix(" MB").replace(",", "")) == pytest.approx(over / MB, rel=0.1)


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


def test_the_native_code_is_built_for_several_instruction_sets(project: Compose) -> None:
    """Those that this machine has of them: it has at least AVX2."""
    code = "import json, postroad_native as n; print(json.dumps(n.supported_isas()))"
    assert len(json.loads(run("engine-cpu", "python", "-c", code))) > 1


@pytest.mark.parametrize("image", LARGEST)
def test_labels_name_the_image(project: Compose, image: str) -> None:
    found = json.loads(docker("image", "inspect", "--format={{json .Config.Labels}}", f"postroad-test-{image}:latest"))
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in found.items()}
    assert labels["title"] == f"postroad-{image}"
    assert labels["description"]
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"] == services.__version__
    assert labels["base.name"] == "python:3.11-slim-bookworm"
    assert "revision" in labels


@pytest.mark.parametrize("image", LARGEST)
def test_a_scanner_finds_every_package_in_the_version_of_the_lock_file(project: Compose, image: str) -> None:
    code = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    listed = json.loads(run(image, "python", "-c", code))
    found = {normalized(name): version for name, version in reversed(listed)}  # the first one is what is imported
    lock = (ROOT / "requirements" / f"{SERVICES[image]}.txt").read_text()
    pinned = {normalized(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", lock, flags=re.M)}
    assert pinned.items() <= found.items()


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("image", LARGEST)
def test_containers_are_confined(project: Compose, image: str) -> None:
    found = json.loads(docker("inspect", project.container(SERVICES[image]).id))[0]
    host = found["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert list(host["Tmpfs"]) == ["/tmp"]
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert found["Config"]["User"] == "postroad"
    assert found["State"]["Health"]["Status"] == "healthy"


def test_a_change_of_the_code_installs_nothing_anew(project: Compose, tmp_path: Path) -> None:
    for name in CONTEXT:
        of = ROOT / name
        if of.is_dir():
            shutil.copytree(of, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(of, tmp_path / name)
    for station in SERVICES.values():
        with (tmp_path / "services" / station / "__main__.py").open("a") as file:
            file.write(f"# {uuid.uuid4()}\n")
    with (tmp_path / "requirements" / "clients.txt").open("a") as file:  # in no image
        file.write(f"# {uuid.uuid4()}\n")
    steps = project.with_settings(POSTROAD_IMAGE_TAG="changed").build_elsewhere(tmp_path)
    try:
        assert len(steps) > 15
        anew = {text for text, cached in steps.items() if not cached and not text.startswith("FROM ")}
        assert anew
        for text in anew:
            assert re.search(r"COPY (services|--from=source)|compileall", text), text
    finally:
        docker("image", "rm", *(f"postroad-test-{image}:changed" for image in LARGEST))
