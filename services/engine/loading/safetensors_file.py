"""Reads a safetensors file's header; the tensors are views of the memory-mapped file.

The format: https://github.com/huggingface/safetensors#format. The package of that name gives bfloat16 to torch alone.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.engine.loading.errors import DamagedFile, UnsupportedQuantization

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # its bits: numpy has no such type
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_LENGTH = struct.Struct("<Q")  # of the JSON header, which follows it


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor's entry in the header. `start` counts from the file's start."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsFile:
    """An open file. Raises DamagedFile, UnsupportedQuantization or FileNotFoundError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                # Writes would stay private. None is made, but torch wants arrays that are not read-only.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._entries = dict(_read_header(self._data))
        except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(error) from error

    def names(self) -> list[str]:
        """The tensors in the order in which they lie in the file."""
        return sorted(self._entries, key=lambda name: self._entries[name].start)

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """A view of the file, C-contiguous and aligned; a bfloat16 tensor's bits as uint16."""
        if (entry := self._entries.get(name)) is None:
            raise self._damaged(f"it has no tensor {name}")
        flat = np.frombuffer(self._data, entry.dtype, math.prod(entry.shape), entry.start)
        return (flat if flat.flags.aligned else flat.copy()).reshape(entry.shape)

    def release(self, name: str) -> None:
        """Lets the kernel take back the memory that reading a tensor filled. It is read again if it is needed."""
        entry = self._entries[name]
        start = -(-entry.start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (entry.start + entry.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            self._data.madvise(mmap.MADV_DONTNEED, start, length)

    def _damaged(self, why: object) -> DamagedFile:
        return DamagedFile(f"{self._path} is not a readable safetensors file: {why}")


def _read_header(data: mmap.mmap) -> Iterator[tuple[str, _Entry]]:
    """Raises ValueError, or whatever JSON of another form leads to."""
    (length,) = _LENGTH.unpack_from(data)
    first = _LENGTH.size + length
    if first > len(data):
        raise ValueError("it ends inside its header")
    header: Mapping[str, Any] = json.loads(data[_LENGTH.size : first])
    for name, fields in header.items():
        if name == "__metadata__":
            continue
        if (dtype := _DTYPES.get(fields["dtype"])) is None:
            raise UnsupportedQuantization(f"the tensor {name} is stored as {fields['dtype']}, which cannot be read")
        start, end = (first + offset for offset in fields["data_offsets"])
        entry = _Entry(dtype, tuple(fields["shape"]), start)
        if start < first or end > len(data):
            raise ValueError(f"it ends inside the tensor {name}")
        if end - start != entry.num_bytes or any(size < 0 for size in entry.shape):
            raise ValueError(f"the tensor {name} does not have the size of its shape")
        yield name, entry
