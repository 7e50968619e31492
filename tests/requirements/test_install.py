"""Setting up .venv: when it is made anew, and which steps are left out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from requirements.install import FOLDERS, Environment, SetupError, Step, check_python, native_step, steps

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A repository's environment without pip, which would take seconds to put in."""
    root = tmp_path / "repository"
    root.mkdir()
    environment = Environment(root)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment.path], check=True)
    environment.prepare()
    return environment


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_supported_pythons_are_taken(version: tuple[int, int]) -> None:
    check_python(version)


@pytest.mark.parametrize("version", [(2, 7), (3, 10), (3, 14)])
def test_other_pythons_are_refused_with_what_to_do(version: tuple[int, int]) -> None:
    with pytest.raises(SetupError, match=r"needs Python 3\.11 to 3\.13.*make PYTHON="):
        check_python(version)


def test_one_made_here_is_used_again(environment: Environment) -> None:
    assert environment.staleness() == ""
    assert Environment(environment.root).staleness() == ""


def test_one_made_by_hand_is_used_as_it_is(environment: Environment) -> None:
    shutil.rmtree(environment.path / "stamps")
    assert environment.staleness() == ""


def test_none_and_one_that_moved_are_stale(environment: Environment, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    assert Environment(moved).staleness() == "there is none"
    environment.root.rename(moved)
    assert Environment(moved).staleness().startswith(f"it was made for {environment.root}, Python 3.")


def test_one_of_another_python_is_stale(environment: Environment) -> None:
    identity = environment.path / "stamps" / "identity"
    identity.write_text(f"{environment.root}\nPython 3.10\n")
    assert environment.staleness() == f"it was made for {environment.root}, Python 3.10"


def test_one_whose_python_is_gone_is_stale(environment: Environment) -> None:
    environment.python.unlink()
    environment.python.symlink_to("/nowhere/python")
    assert environment.staleness() == "its Python does not run"


def test_a_step_is_left_out_until_its_sources_change(environment: Environment) -> None:
    lock, made = environment.root / "lock.txt", environment.root / "made"
    lock.write_text("a==1\n")
    made.mkdir()
    step = Step("lock", [lock], [], makes=made)
    assert not environment.is_done(step)
    environment._pip = lambda args: True  # type: ignore[method-assign]
    environment.install(step, torch_index="")
    assert environment.is_done(step)
    lock.write_text("a==2\n")
    assert not environment.is_done(step)
    lock.write_text("a==1\n")
    assert environment.is_done(step), "the contents count, not the time"
    made.rmdir()
    assert not environment.is_done(step), "what it made is gone"


def test_torch_alone_is_tried_from_its_index_when_pip_does_not_find_it(environment: Environment) -> None:
    lock = environment.root / "torch.txt"
    lock.write_text("torch==1\n")
    calls: list[list[str]] = []
    environment._pip = lambda args: calls.append(args) or "--extra-index-url" in args  # type: ignore[method-assign,func-returns-value]
    environment.install(Step("torch", [lock], ["-r", "torch.txt"]), "http://index")
    assert calls == [["-r", "torch.txt"], ["--extra-index-url", "http://index", "-r", "torch.txt"]]
    with pytest.raises(SetupError, match="could not install serve"):
        environment.install(Step("serve", [lock], ["-r", "serve.txt"]), "http://index")


def test_a_native_build_that_fails_is_a_warning_and_is_tried_again(
    environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    source = environment.root / "step.cpp"
    source.write_text("int main() {")
    step = Step("native", [source], ["./native"], without="the engine runs models with torch")
    environment._pip = lambda args: False  # type: ignore[method-assign]
    environment.install(step, torch_index="http://index")
    assert capsys.readouterr().err == "warning: pip could not build native; the engine runs models with torch\n"
    assert not environment.is_done(step)


def test_the_native_build_depends_on_what_is_compiled() -> None:
    names = {path.name for path in native_step(ROOT).sources}
    assert {"pyproject.toml", "CMakeLists.txt", "module.cpp", "sampler.h", "__init__.py"} <= names


@pytest.mark.parametrize("lock", FOLDERS)
def test_every_source_of_a_step_exists(lock: str) -> None:
    for step in steps(ROOT, lock):
        assert step.sources
        assert all(source.is_file() for source in step.sources)
