"""Random weights of a given config: models whose checkpoint is not at hand, for tests and measurements."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from services.engine.models.config import ModelConfig
from services.engine.models.weights import weight_shapes


def random_weights(config: ModelConfig, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yields (Hugging Face name, float32 tensor on the CPU) for every tensor of the model, the same for the same seed.

    Matrices keep a signal's variance, norms multiply by about 1 and biases are not 0: leaving any of them out shows.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, shape in weight_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            yield name, noise / shape[-1] ** 0.5
        elif name.endswith("norm.weight"):
            yield name, 1.0 - config.norm_offset + 0.1 * noise
        else:
            yield name, 0.1 * noise
