"""Native executors of small random models. To be imported where `postroad_native` is known to be installed."""

from __future__ import annotations

from typing import Any

from services.engine.executor.base import ExecutorInfo
from services.engine.executor.native_executor import NativeExecutor
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.native_startup import load_model
from services.engine.quantization import WeightFormats

PAGE_SIZE = 16


def native_executor(
    config: dict[str, Any], num_pages: int = 64, threads: int = 1, weight_format: str = "f32"
) -> NativeExecutor:
    """With the weights of `tests.engine.models.reference.decoder(config)`."""
    parsed = ModelConfig.from_hf(config)
    length = min(parsed.max_position_embeddings, num_pages * PAGE_SIZE)
    info = ExecutorInfo(num_pages, PAGE_SIZE, parsed.vocab_size, max_model_len=length)
    weights = ((name, tensor.numpy()) for name, tensor in random_weights(parsed, seed=0))
    formats = WeightFormats.plain(weight_format)
    return NativeExecutor(load_model(parsed, weights, info, threads, formats), info, threads)
