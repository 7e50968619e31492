"""The weights of a model as torch tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from services.engine.loading.arrays import iter_arrays
from services.engine.loading.source import ModelSource


def iter_weights(source: ModelSource, config: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """As iter_arrays, with tensors on the CPU that share the arrays' memory; bfloat16 is itself."""
    for name, array in iter_arrays(source, config):
        tensor = torch.from_numpy(array)
        yield name, tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
