"""The default model's tokenizer files, and transformers' own tokenizer of them as the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.engine.loading.files import read_model_files
from services.engine.loading.source import resolve
from services.tokenizer.model_tokenizer import ModelTokenizer


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    return read_model_files(resolve("default")).tokenizer_files


@pytest.fixture(scope="session")
def tokenizer(files: dict[str, bytes]) -> ModelTokenizer:
    return ModelTokenizer.from_files(files)


@pytest.fixture(scope="session")
def oracle(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder: Path = tmp_path_factory.mktemp("oracle")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return AutoTokenizer.from_pretrained(folder)
