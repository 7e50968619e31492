"""What a token must at least read."""

from __future__ import annotations

import pytest

from services.engine.models.config import ModelConfig
from services.engine.models.weights import weight_shapes
from tests.bench.limits import decode_bytes
from tests.bench.models import SHAPES


@pytest.mark.parametrize("name", SHAPES)
def test_a_token_reads_all_weights_once(name: str) -> None:
    config = ModelConfig.from_hf(SHAPES[name])
    matrices = sum(shape[0] * shape[1] for shape in weight_shapes(config).values() if len(shape) == 2)
    keys_and_values = 100 * 2 * config.num_layers * config.kv_size * 2
    assert decode_bytes(config, "bf16", context=100) == 2 * matrices + keys_and_values
    assert (
        matrices / 2 < decode_bytes(config, "4-bit", context=0) < decode_bytes(config, "8-bit", context=0) == matrices
    )
