"""What a machine's memory gives, and what a step must at least do: no step can be faster than one allows the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from services.engine.models.config import ModelConfig
from tests.bench.scenarios import Width

# Bits of a weight of the layers, and of the head, which is in 8 bits where layers are in 4. Groups of 32 have a scale.
_LAYER_BITS: dict[Width, float] = {"bf16": 16, "8-bit": 8, "4-bit": 4.5}
_HEAD_BITS: dict[Width, float] = {"bf16": 16, "8-bit": 8, "4-bit": 8}


class Memory:
    """Measures the bandwidth at which threads read memory together, at this moment."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._parts = [np.ones(1 << 25, np.int64) for _ in range(threads)]  # 256 MiB each: beyond most caches

    def bandwidth(self) -> float:
        """Bytes per second; takes a fifth of a second."""
        read = best_seconds(lambda: list(self._pool.map(np.max, self._parts)), repeats=5)
        return sum(part.nbytes for part in self._parts) / read


@dataclass(frozen=True)
class Work:
    """What a step must at least do."""

    kv_bytes: int
    flops: float

    @classmethod
    def of(cls, config: ModelConfig, tokens: int, context: int, sequences: int) -> Work:
        """`tokens` tokens of each of `sequences` sequences, the last of which sees `context` tokens. Weights are left
        out: how many bytes they take depends on their format.
        """
        kv, layer, head = config.kv_size, layer_size(config), head_size(config)
        seen = tokens * (2 * context - tokens + 1) / 2  # keys that the tokens see, all together
        attention = 4 * config.q_size * seen * config.num_layers
        return cls(
            kv_bytes=2 * 2 * sequences * context * kv * config.num_layers,
            flops=sequences * (2.0 * tokens * config.num_layers * layer + attention + 2.0 * head),
        )


def layer_size(config: ModelConfig) -> int:
    """Weights of the linear layers of one decoder layer."""
    return config.hidden_size * (2 * config.q_size + 2 * config.kv_size + 3 * config.intermediate_size)


def head_size(config: ModelConfig) -> int:
    return config.vocab_size * config.hidden_size


def decode_bytes(config: ModelConfig, width: Width, context: int) -> float:
    """What must be read for one token of a stream by itself: all weights, and keys and values in bf16."""
    layers = config.num_layers * layer_size(config) * _LAYER_BITS[width] / 8
    return layers + head_size(config) * _HEAD_BITS[width] / 8 + Work.of(config, 1, context, 1).kv_bytes


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    return min(seconds_of(call, repeats))


def seconds_of(call: Callable[[], object], repeats: int) -> list[float]:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times
