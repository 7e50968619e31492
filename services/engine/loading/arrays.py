"""The weights of a model as numpy arrays, tensor by tensor, under the names that Hugging Face gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from services.engine.loading.errors import DamagedFile, FileMissing, WeightsMissing
from services.engine.loading.gguf_blocks import GgufBlocks
from services.engine.loading.gguf_weights import iter_gguf
from services.engine.loading.safetensors_file import SafetensorsFile
from services.engine.loading.source import ModelSource

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


def iter_arrays(source: ModelSource, config: Mapping[str, Any]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yields (name, array) once per stored tensor, in the order in which they lie on disk.

    `config` is the ModelFiles.config of the same source. Arrays are C-contiguous. Dtypes are the file's, but bfloat16
    comes as its bits in uint16, and what is quantized as float32; the consumer casts. A tensor of a safetensors file
    is a view of the memory-mapped file, to be copied and not written to. A tied output projection may be absent.
    Raises a LoadingError.
    """
    for name, stored in iter_stored(source, config):
        yield name, stored.dequantize() if isinstance(stored, GgufBlocks) else stored


def iter_stored(source: ModelSource, config: Mapping[str, Any]) -> Iterator[tuple[str, npt.NDArray[Any] | GgufBlocks]]:
    """As iter_arrays, but matrices that the file holds as GgufBlocks stay so."""
    return iter_gguf(source.path, config) if source.kind == "gguf" else _iter_folder(source.path)


def _iter_folder(folder: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for path, names in _shards(folder).items():
        try:
            shard = SafetensorsFile(path)
        except FileNotFoundError as error:
            raise FileMissing(f"{folder} has no {path.name}, which {INDEX_FILE} names") from error
        for name in names if names is not None else shard.names():
            yield name, shard.tensor(name)
            shard.release(name)  # or the whole file would stay in memory beside the consumer's copy of it


def _shards(folder: Path) -> dict[Path, list[str] | None]:
    """The files to read and the tensors to take from each; None: all of them."""
    index = folder / INDEX_FILE
    if index.exists():
        try:
            weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"{index} is not an index of safetensors files: {error}") from error
        shards: dict[Path, list[str] | None] = {}
        for file in sorted(set(weight_map.values())):
            shards[folder / file] = [name for name, its_file in weight_map.items() if its_file == file]
        return shards
    if (folder / SINGLE_FILE).exists():
        return {folder / SINGLE_FILE: None}
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise WeightsMissing(f"{folder} has {len(files)} .safetensors files, no {INDEX_FILE} and no {SINGLE_FILE}")
    return {files[0]: None}
