"""The lock files fit pyproject.toml and one another, and can be installed without dependency resolution."""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch"  # pinned in a file of its own
EXTRAS_OF = {
    "gateway": ["gateway"],
    "tokenizer": ["tokenizer"],
    "detokenizer": ["detokenizer"],
    "engine": ["engine"],
    "serve": ["gateway", "tokenizer", "detokenizer", "engine", "tools"],
    "dev": ["gateway", "tokenizer", "detokenizer", "engine", "tools", "dev"],
}


def pins(name: str) -> dict[str, Version]:
    """The versions of a lock file by canonical package name; each line must be an exact pin."""
    versions: dict[str, Version] = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if text := line.partition("#")[0].strip():
            package, equals, version = text.partition("==")
            assert equals, f"{name}.txt: {text} is no exact pin"
            versions[canonicalize_name(package)] = Version(version)
    return versions


def wanted(name: str) -> list[Requirement]:
    """What pyproject.toml asks for, for this lock file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for extra in EXTRAS_OF[name] for text in project["optional-dependencies"][extra]]
    return [Requirement(text) for text in (*project["dependencies"], *extras)]


@pytest.mark.parametrize("name", EXTRAS_OF)
def test_the_pins_satisfy_pyproject(name: str) -> None:
    versions = pins(name) | pins(TORCH)
    for requirement in wanted(name):
        package = canonicalize_name(requirement.name)
        assert package in versions, f"{name}.txt lacks {requirement}: run `make lock`"
        assert requirement.specifier.contains(versions[package]), f"{name}.txt: {requirement}: run `make lock`"


@pytest.mark.parametrize("name", EXTRAS_OF)
def test_nothing_is_left_to_resolve(name: str) -> None:
    versions = pins(name)
    for package in versions:
        for text in distribution(package).requires or []:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            needed = canonicalize_name(requirement.name)
            assert needed in versions or needed == TORCH, f"{name}.txt has {package} and lacks its {requirement}"


@pytest.mark.parametrize("name", EXTRAS_OF)
def test_all_lock_files_agree(name: str) -> None:
    everything = pins("dev")
    assert {package: everything.get(package) for package in pins(name)} == pins(name)


def test_the_pins_of_other_clients_satisfy_what_is_asked_for() -> None:
    versions = pins("clients")
    for line in (ROOT / "requirements" / "clients.in").read_text().splitlines():
        if text := line.partition("#")[0].strip():
            requirement = Requirement(text)
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), "run `make lock`"


@pytest.mark.parametrize("name", [*EXTRAS_OF, "clients"])
def test_no_address_and_no_cuda(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    assert "--" not in text, "no options such as --index-url"
    assert not [package for package in pins(name) if package == TORCH or package.startswith(("nvidia", "triton"))]


@pytest.mark.parametrize("name", ["gateway", "tokenizer", "detokenizer"])
def test_the_images_without_the_engine_need_nothing_of_torch(name: str) -> None:
    assert not {"sympy", "networkx", "gguf"} & set(pins(name))
