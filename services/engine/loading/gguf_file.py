"""Reads a GGUF file's header: metadata and the table of tensors. Tensor data stay in the file until asked for.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The gguf package has a reader too, which makes
several numpy arrays per string and so takes two seconds for a vocabulary of 49,152; this one takes a tenth.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGUF_VERSION,
    GGMLQuantizationType,
    GGUFValueType,
)

from services.engine.loading.errors import DamagedFile, ModelNotFound, UnsupportedQuantization

READABLE_VERSIONS = (2, GGUF_VERSION)

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's entry in the table."""

    name: str
    shape: tuple[int, ...]  # in torch's order, rows first
    ggml_type: GGMLQuantizationType
    offset: int  # bytes from the file's start
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open GGUF file. Arrays in `metadata` are lists."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def data(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file, memory-mapped: [*shape[:-1], bytes of a row], uint8."""
        flat = np.memmap(self.path, np.uint8, mode="r", offset=info.offset, shape=(info.num_bytes,))
        return flat.reshape(*info.shape[:-1], -1)


def read_gguf(path: Path) -> GgufFile:
    """Reads the header. Raises ModelNotFound, DamagedFile or UnsupportedQuantization."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(path, data)
    except FileNotFoundError as error:
        raise ModelNotFound(f"no such file: {path}") from error
    except (
        struct.error,
        ValueError,
    ) as error:  # mmap of an empty file, an unknown value type, a text that is not UTF-8
        raise DamagedFile(f"{path} is not a readable GGUF file: {error}") from error


def _read(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data)
    magic, version = cursor.scalar("I"), cursor.scalar("I")
    if magic != GGUF_MAGIC:
        raise DamagedFile(f"{path} is not a GGUF file")
    if version not in READABLE_VERSIONS:
        raise DamagedFile(f"{path} has GGUF version {version}; readable are {READABLE_VERSIONS} in little-endian order")
    num_tensors, num_entries = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(num_entries)}
    entries = [_tensor_entry(cursor) for _ in range(num_tensors)]

    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    start = math.ceil(cursor.position / alignment) * alignment
    tensors = {}
    for name, shape, type_number, offset in entries:
        ggml_type = _known_type(name, type_number)
        block_length, block_bytes = GGML_QUANT_SIZES[ggml_type]
        num_bytes = math.prod(shape) // block_length * block_bytes
        if start + offset + num_bytes > len(data):
            raise DamagedFile(f"{path} ends inside the tensor {name}: the file was not copied in full")
        tensors[name] = TensorInfo(name, shape, ggml_type, start + offset, num_bytes)
    return GgufFile(path, metadata, tensors)


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type number and offset from the data's start."""
    name = cursor.string()
    shape = cursor.scalars("Q", cursor.scalar("I"))[::-1]  # stored with the fastest-moving dimension first
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _known_type(tensor: str, number: int) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(number)
    except ValueError as error:
        raise UnsupportedQuantization(f"the tensor {tensor} has the unknown GGML type {number}") from error


class _Cursor:
    """Walks the header. All numbers are little-endian."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def scalars(self, code: str, count: int) -> tuple[Any, ...]:
        packed = struct.Struct(f"<{count}{code}")
        values = packed.unpack_from(self._data, self.position)
        self.position += packed.size
        return values

    def scalar(self, code: str) -> Any:
        return self.scalars(code, 1)[0]

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        data, position, end = self._data, self.position, len(self._data)
        length_of = struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):  # several hundred thousand rounds for a large vocabulary and its merges
            start = position + 8
            position = start + length_of(data, position)[0]
            if position > end:
                raise ValueError("it ends inside a text")
            texts.append(data[start:position].decode())
        self.position = position
        return texts

    def value(self, type_number: int) -> Any:
        value_type = GGUFValueType(type_number)
        if value_type == GGUFValueType.STRING:
            return self.string()
        if value_type != GGUFValueType.ARRAY:
            return self.scalar(_SCALARS[value_type])
        element_type, count = GGUFValueType(self.scalar("I")), self.scalar("Q")
        if element_type == GGUFValueType.STRING:
            return self.strings(count)
        if element_type == GGUFValueType.ARRAY:
            raise ValueError("it has an array of arrays")
        return list(self.scalars(_SCALARS[element_type], count))
