"""All that can be known of a model before its weights are read: quick, and without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.tokenizer_files import fingerprint
from services.engine.loading import gguf_config, gguf_tokenizer
from services.engine.loading.errors import DamagedFile, FileMissing, UnsupportedArchitecture
from services.engine.loading.gguf_file import read_gguf
from services.engine.loading.source import ModelSource
from services.engine.models.config import ARCHITECTURES


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's configuration and tokenizer."""

    config: dict[str, Any]  # in the form of Hugging Face's config.json
    vocab_size: int  # rows of the embedding
    eos_token_ids: frozenset[int]  # every id that ends a sequence
    tokenizer_files: dict[str, bytes]  # by name, as GetTokenizerFiles sends them
    tokenizer_fingerprint: str  # GetModelResponse.tokenizer_fingerprint

    @property
    def hidden_size(self) -> int:
        """Numbers in a state of the language part."""
        return int(self.config.get("text_config", self.config)["hidden_size"])


def read_model_files(source: ModelSource) -> ModelFiles:
    """Reads configuration and tokenizer. Raises a LoadingError."""
    return _from_gguf(source.path) if source.kind == "gguf" else _from_folder(source.path)


def _from_gguf(path: Path) -> ModelFiles:
    file = read_gguf(path)
    config = gguf_config.config_from_gguf(file)
    tokenizer_files = gguf_tokenizer.tokenizer_files(file)
    return ModelFiles(
        config=config,
        vocab_size=config["vocab_size"],
        eos_token_ids=gguf_config.eos_token_ids(file),
        tokenizer_files=tokenizer_files,
        tokenizer_fingerprint=fingerprint(tokenizer_files),
    )


def _from_folder(folder: Path) -> ModelFiles:
    config = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    names = ["tokenizer.json", "tokenizer_config.json"]
    if (folder / "chat_template.jinja").exists():
        names.append("chat_template.jinja")
    tokenizer_files = {name: _bytes(folder / name) for name in names}
    # The language part of a model that has others too.
    text_config = config.get("text_config", config)
    for name in ("vocab_size", "hidden_size"):
        if name not in text_config:
            _refuse_unknown_architectures(folder, config)
            raise DamagedFile(f"{folder / 'config.json'} does not say {name}")
    ids = [source.get("eos_token_id") for source in (config, text_config, generation)]
    return ModelFiles(
        config=config,
        vocab_size=text_config["vocab_size"],
        eos_token_ids=_union(*ids, _tokenizer_eos(folder)),
        tokenizer_files=tokenizer_files,
        tokenizer_fingerprint=fingerprint(tokenizer_files),
    )


def _refuse_unknown_architectures(folder: Path, config: Mapping[str, Any]) -> None:
    """Other architectures have other names for the same things: what is wrong is not that a field is missing."""
    named = [name for name in config.get("architectures") or () if name not in ARCHITECTURES]
    if named:
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'} has the architecture {named[0]!r}; supported: {', '.join(ARCHITECTURES)}"
        )


def _tokenizer_eos(folder: Path) -> int | None:
    """The id of the token that tokenizer_config.json calls the end of a sequence."""
    eos = _json(folder / "tokenizer_config.json").get("eos_token")
    text = eos.get("content") if isinstance(eos, Mapping) else eos
    if text is None:
        return None
    tokenizer = _json(folder / "tokenizer.json")
    for token in tokenizer.get("added_tokens", []):
        if token["content"] == text:
            return int(token["id"])
    vocab = tokenizer["model"]["vocab"]
    if isinstance(vocab, Mapping):
        return vocab.get(text)
    return next((id for id, (piece, _) in enumerate(vocab) if piece == text), None)  # Unigram: pieces with scores


def _union(*fields: int | list[int] | None) -> frozenset[int]:
    """`eos_token_id` may be absent, one id, or several."""
    ids: set[int] = set()
    for field in fields:
        ids.update(field if isinstance(field, list) else [] if field is None else [field])
    return frozenset(ids)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileMissing(f"{path.parent} has no {path.name}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_bytes(path))
    except ValueError as error:
        raise DamagedFile(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} is not a JSON object")
    return value
