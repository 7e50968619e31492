"""The weights of a model as torch tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from services.engine.loading.arrays import iter_arrays
from services.engine.loading.gguf_weights import GgufTensor, iter_gguf_tensors
from services.engine.loading.source import ModelSource


def iter_weights(source: ModelSource, config: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """As iter_arrays, with tensors on the CPU that share the arrays' memory; bfloat16 is itself."""
    for name, array in iter_arrays(source, config):
        yield name, _tensor(array)


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor of a GGUF file of which only what is indexed is read."""

    stored: GgufTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def __getitem__(self, part: tuple[slice, ...]) -> torch.Tensor:
        return _tensor(self.stored[part])


def iter_lazily(
    source: ModelSource, config: Mapping[str, Any]
) -> Iterator[tuple[str, LazyTensor]] | Iterator[tuple[str, torch.Tensor]]:
    """As iter_weights, for who wants a part of each tensor, `tensor[rows, columns]`: nothing else is read.

    A tensor is to be used before the next one is taken.
    """
    if source.kind == "gguf":
        return ((name, LazyTensor(stored)) for name, stored in iter_gguf_tensors(source.path, config))
    return iter_weights(source, config)  # views of the memory-mapped file


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
