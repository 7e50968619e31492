"""Dockerfile.gpu and docker-compose.gpu.yml against those for CPUs, pyproject.toml and one another.

tests/containers/test_gpu_image.py builds the image, of stand-ins.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from fnmatch import fnmatch

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from services.engine.settings import EngineSettings
from tests.docs.pages import ROOT

COMPOSE = (ROOT / "docker-compose.gpu.yml").read_text()
SERVICES = yaml.safe_load(COMPOSE)["services"]
ENGINE = SERVICES["engine"]
LATE = ("USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "ENV")


def instructions(name: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions with their arguments, each on one line."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(), flags=re.M)
    text = re.sub(r"\s*\\\n\s*", " ", text)
    return [(word, rest) for line in text.splitlines() if line for word, _, rest in [line.partition(" ")]]


def stage(name: str, title: str) -> list[tuple[str, str]]:
    """The instructions of one stage."""
    found = instructions(name)
    [start] = [i for i, (word, rest) in enumerate(found) if word == "FROM" and rest.endswith(f" AS {title}")]
    end = next((i for i in range(start + 1, len(found)) if found[i][0] == "FROM"), len(found))
    return found[start + 1 : end]


def test_the_image_ends_as_the_engine_s_for_cpus() -> None:
    cpu, gpu = ([i for i in stage(name, "engine") if i[0] in LATE] for name in ("Dockerfile.cpu", "Dockerfile.gpu"))
    assert gpu == cpu
    assert ("USER", "postroad") in gpu


def test_the_labels_are_those_of_cpus_but_for_title_and_base() -> None:
    cpu, gpu = (dict(stage(name, "engine"))["LABEL"] for name in ("Dockerfile.cpu", "Dockerfile.gpu"))
    differ = {"postroad-engine-cpu": "postroad-engine-gpu", "$BASE_IMAGE": "$CUDA_IMAGE"}
    for of_cpu, of_gpu in differ.items():
        assert cpu != (cpu := cpu.replace(of_cpu, of_gpu))
    assert gpu == cpu


def test_all_stages_have_one_python_and_no_compiler() -> None:
    found = instructions("Dockerfile.gpu")
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert bases == ["${CUDA_IMAGE}", "base", "base"]
    installed = " ".join(rest for word, rest in found if word == "RUN" and "apt-get" in rest)
    assert re.search(r"--no-install-recommends python3 python3-venv ", installed)
    assert not re.search(r"g\+\+|gcc|build-essential|-dev\b|nvcc", installed)
    assert "-devel" not in " ".join(
        [*(rest for word, rest in found if word == "ARG"), *ENGINE["build"]["args"].values()]
    )


def test_torch_is_that_of_cpus_in_a_cuda_build() -> None:
    [command] = [rest for word, rest in stage("Dockerfile.gpu", "engine") if "torch.txt" in rest]
    [sed] = re.findall(r"\$\((sed .*)\)", command)
    sed = sed.replace("/requirements/", f"{ROOT}/requirements/")
    torch = subprocess.run(["sh", "-c", sed], capture_output=True, text=True, check=True).stdout.strip()
    assert f"{torch}+cpu" in (ROOT / "requirements/torch.txt").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [wanted] = [Requirement(text) for text in project["optional-dependencies"]["engine"] if text.startswith("torch")]
    assert wanted.specifier.contains(Version(torch.removeprefix("torch==")))


def test_what_the_builder_needs_is_sent_to_it() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    used = re.findall(r"source=(\w\S*?),", (ROOT / "Dockerfile.gpu").read_text())
    used += [rest.split()[0] for word, rest in instructions("Dockerfile.gpu") if word == "COPY" and "--" not in rest]
    assert {path.partition("/")[0] for path in used} == {"requirements", "protos", "services"}
    assert all((ROOT / path).exists() for path in used)
    assert all(any(fnmatch(path, f"{pattern}*") for pattern in allowed) for path in used)
    mounted = {path.removeprefix("requirements/") for path in used}
    assert set(re.findall(r"/requirements/([\w.]+)", (ROOT / "Dockerfile.gpu").read_text())) <= mounted


def test_the_pins_are_those_that_pyproject_asks_for() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "requirements/gpu.txt").read_text(), flags=re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in map(Requirement, project["optional-dependencies"]["gpu"]):
        assert requirement.specifier.contains(Version(pins[requirement.name]))
    assert pins["flashinfer-jit-cache"] == pins["flashinfer-python"]  # it refuses kernels of another version


def test_what_they_need_is_pinned_as_the_engine_s_packages_are() -> None:
    cuda, engine, gpu = (
        dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements" / f"{name}.txt").read_text().lower(), flags=re.M))
        for name in ("cuda", "engine", "gpu")
    )
    assert {"nvidia-cublas", "triton", "cuda-python"} <= set(cuda)
    assert "torch" not in cuda
    for others in (engine, gpu):
        assert set(cuda) & set(others)
        assert {name: cuda[name] for name in set(cuda) & set(others)} == {
            name: others[name] for name in set(cuda) & set(others)
        }


@pytest.mark.parametrize("name", ["engine", "serve", "dev", "gateway", "tokenizer", "detokenizer", "torch"])
def test_nothing_of_it_is_in_the_lock_files_for_cpus(name: str) -> None:
    assert not re.search(r"flashinfer|triton|nvidia", (ROOT / "requirements" / f"{name}.txt").read_text())


def test_the_override_changes_the_engine_s_ranks_alone_and_nothing_that_cpus_share() -> None:
    assert [key for key in yaml.safe_load(COMPOSE) if not key.startswith("x-")] == ["services"]
    assert list(SERVICES) == ["engine", "engine-rank-1"]
    base = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["engine"]
    assert ENGINE["image"] == base["image"].replace("engine-cpu", "engine-gpu") != base["image"]
    assert base["build"]["target"] in [rest.split()[-1] for w, rest in instructions("Dockerfile.gpu") if w == "FROM"]
    # Compose merges the arguments: a name of both would carry the value for CPUs.
    assert not set(ENGINE["build"]["args"]) & set(base["build"]["args"])
    assert not set(ENGINE["environment"]) & set(base["environment"])


def test_the_override_s_build_arguments_are_the_dockerfile_s_with_its_defaults() -> None:
    arguments = [rest for word, rest in instructions("Dockerfile.gpu") if word == "ARG"]
    declared = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    assert declared.pop("REVISION") == ""  # comes from the base's arguments
    given = {
        name: re.sub(r"^\$\{" + name + r":?-(.*)\}$", r"\1", value) for name, value in ENGINE["build"]["args"].items()
    }
    assert given == declared


def test_the_override_s_variables_are_in_env_example() -> None:
    given = dict(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(), flags=re.M))
    used = dict(re.findall(r"\$\{(\w+):?-([^}]*)\}", COMPOSE))
    assert {name for name, default in used.items() if given[name] != default} == {"POSTROAD_ENGINE_DEVICE"}
    assert given["COMPOSE_FILE"] == "docker-compose.yml:docker-compose.gpu.yml"


def test_each_rank_gets_a_gpu_of_its_own_and_is_told_to_use_it() -> None:
    gpus = []
    for service in SERVICES.values():
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        gpus += device["device_ids"]
        assert {key: service[key] for key in service if key != "deploy"} == {
            key: ENGINE[key] for key in ENGINE if key != "deploy"
        }
    assert gpus == ["0", "1"]
    default = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", ENGINE["environment"]["POSTROAD_ENGINE_DEVICE"])
    assert EngineSettings(device=default).device == "cuda"
