"""Configuration and tokenizer of a model, before its weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.common.tokenizer_files import fingerprint
from services.engine.loading.errors import DamagedFile, FileMissing, UnsupportedArchitecture
from services.engine.loading.files import read_model_files
from services.engine.loading.source import ModelSource, resolve

SIZES = {"vocab_size": 8, "hidden_size": 4}
TOKENIZER = {
    "added_tokens": [{"id": 3, "content": "<|end|>"}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2}, "merges": []},
}


def _folder(path: Path, **changes: Any) -> ModelSource:
    """Writes a folder; `changes` by file name without its ending, None leaves the file out."""
    files = {
        "config": {**SIZES, "eos_token_id": 2},
        "tokenizer": TOKENIZER,
        "tokenizer_config": {},
        **changes,
    }
    for name, content in files.items():
        if content is not None:
            (path / f"{name}.json").write_text(json.dumps(content))
    return ModelSource("safetensors", path, "tiny")


def test_default_model() -> None:
    files = read_model_files(resolve("default"))
    assert (files.vocab_size, files.hidden_size) == (49152, 576)
    assert files.eos_token_ids == {2}
    assert sorted(files.tokenizer_files) == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    assert files.tokenizer_fingerprint == fingerprint(files.tokenizer_files)
    assert read_model_files(resolve("default")) == files


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = (
        "import sys\n"
        "from services.engine.loading.files import read_model_files\n"
        "from services.engine.loading.source import resolve\n"
        "read_model_files(resolve('default'))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_folder(tmp_path: Path) -> None:
    source = _folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "special_tokens_map.json").write_text("{}")
    files = read_model_files(source)
    assert files.config == {**SIZES, "eos_token_id": 2}
    assert (files.vocab_size, files.hidden_size) == (8, 4)
    names = ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    assert files.tokenizer_files == {name: (tmp_path / name).read_bytes() for name in names}


def test_fingerprint_follows_the_tokenizer_files_alone(tmp_path: Path) -> None:
    before = read_model_files(_folder(tmp_path)).tokenizer_fingerprint
    assert read_model_files(_folder(tmp_path, config={**SIZES, "vocab_size": 9})).tokenizer_fingerprint == before
    (tmp_path / "chat_template.jinja").write_text("")
    assert read_model_files(_folder(tmp_path)).tokenizer_fingerprint != before


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({}, {2}),
        ({"config": {**SIZES}}, set()),
        ({"config": {**SIZES, "eos_token_id": [4, 5]}}, {4, 5}),
        ({"config": {**SIZES, "eos_token_id": None}, "generation_config": {"eos_token_id": 0}}, {0}),
        ({"generation_config": {"eos_token_id": [6, 7]}}, {2, 6, 7}),
        ({"tokenizer_config": {"eos_token": "<|end|>"}}, {2, 3}),
        ({"tokenizer_config": {"eos_token": {"content": "<|end|>", "special": True}}}, {2, 3}),
        ({"tokenizer_config": {"eos_token": "b"}}, {1, 2}),
        ({"tokenizer_config": {"eos_token": "not a token"}}, {2}),
        (
            {
                "tokenizer": {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["x", -1.0], ["</s>", 0.0]]}},
                "tokenizer_config": {"eos_token": "x"},
            },
            {1, 2},
        ),
        ({"config": {"eos_token_id": 2, "text_config": {**SIZES, "eos_token_id": 5}}}, {2, 5}),
        (
            {"generation_config": {"eos_token_id": [4, 2]}, "tokenizer_config": {"eos_token": "<|end|>"}},
            {2, 3, 4},
        ),
    ],
)
def test_fieldbug_10_all_eos_ids_count(changes: dict[str, Any], ids: set[int], tmp_path: Path) -> None:
    """The union of config.json, generation_config.json and the tokenizer."""
    assert read_model_files(_folder(tmp_path, **changes)).eos_token_ids == ids


@pytest.mark.parametrize("name", ["config", "tokenizer", "tokenizer_config"])
def test_missing_file_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match=rf"has no {name}\.json"):
        read_model_files(_folder(tmp_path, **{name: None}))


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    source = _folder(tmp_path)
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"generation_config\.json is not"):
        read_model_files(source)


def test_another_architecture_is_named_rather_than_what_its_config_lacks(tmp_path: Path) -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 8, "n_embd": 4}
    with pytest.raises(UnsupportedArchitecture, match=r"GPT2LMHeadModel.*LlamaForCausalLM"):
        read_model_files(_folder(tmp_path, config=config))


@pytest.mark.parametrize("missing", SIZES)
def test_config_without_a_size(missing: str, tmp_path: Path) -> None:
    sizes = {name: size for name, size in SIZES.items() if name != missing}
    with pytest.raises(DamagedFile, match=missing):
        read_model_files(_folder(tmp_path, config={**sizes, "eos_token_id": 2}))
