"""Matrices that a GGUF file stores in blocks of 32 numbers with a scale, and that can be computed with as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

# By the names that postroad_native has for them.
BLOCK_TYPES: Mapping[GGMLQuantizationType, str] = {
    GGMLQuantizationType.Q4_0: "q4_0",
    GGMLQuantizationType.Q4_1: "q4_1",
    GGMLQuantizationType.Q8_0: "q8_0",
}


@dataclass(frozen=True, slots=True)
class GgufBlocks:
    """A matrix in blocks. data: [rows, bytes of a row], uint8, C-contiguous."""

    data: npt.NDArray[np.uint8]
    ggml_type: GGMLQuantizationType

    @property
    def name(self) -> str:
        """The type's name: q4_0, q4_1 or q8_0."""
        return BLOCK_TYPES[self.ggml_type]

    def dequantize(self) -> npt.NDArray[np.float32]:
        """[rows, columns]"""
        values: npt.NDArray[np.float32] = gguf.quants.dequantize(self.data, self.ggml_type)
        return values
