"""Settings → weights and KV pool in memory → a NativeExecutor. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import postroad_native

from services.engine import hardware, resources
from services.engine.executor.base import ExecutorInfo
from services.engine.executor.native_executor import NativeExecutor
from services.engine.loading.arrays import iter_stored
from services.engine.loading.files import ModelFiles
from services.engine.loading.gguf_blocks import GgufBlocks
from services.engine.loading.gguf_weights import stored_blocks
from services.engine.loading.source import ModelSource
from services.engine.models.config import ModelConfig
from services.engine.models.errors import NotCovered, WeightError
from services.engine.models.frequencies import inverse_frequencies
from services.engine.models.projections import separated
from services.engine.quantization import WeightFormats
from services.engine.settings import EngineSettings

BLOCK = 16  # the KV pool is made of blocks of so many tokens; a value takes a multiple of so many elements

_WEIGHT_FORMATS = {"float32": "f32", "bfloat16": "bf16"}
_ITEM_SIZES = {"f32": 4, "bf16": 2}
_SCALE_SIZE = 4
_TAKEN = (np.float32, np.float16, np.uint16)  # the last are bits of bfloat16


def load_native_executor(settings: EngineSettings, source: ModelSource, files: ModelFiles) -> NativeExecutor:
    """Gives the KV pool its share of the memory that will be free beside the weights, then loads them.

    Raises NotCovered, LoadingError, another ModelError, and StartupError if not a single page fits.
    """
    config = ModelConfig.from_hf(files.config, settings.max_model_len)
    check_covered(config, settings)
    weight_format = _WEIGHT_FORMATS[resources.dtype(settings)]
    kv_format = "int8" if settings.kv_cache_dtype == "int8" else "auto"
    stored = stored_blocks(source.path) if source.kind == "gguf" else {}
    formats = WeightFormats.choose(resources.quantization(settings), weight_format, config, stored)
    threads = resources.num_threads(settings)
    num_pages = resources.num_pages(
        settings,
        kv_bytes_per_page(config, weight_format, settings.page_size, kv_format),
        still_to_load=formats.num_bytes(config, stored),
    )
    limits = [config.max_position_embeddings, num_pages * settings.page_size]
    if settings.max_model_len is not None:
        limits.append(settings.max_model_len)
    info = ExecutorInfo(
        num_pages,
        settings.page_size,
        config.vocab_size,
        max_model_len=min(limits),
        fills_cores=threads >= hardware.usable_cores(),
    )
    weights = iter_stored(source, files.config)
    model = load_model(config, weights, info, threads, formats, kv_format=kv_format)
    return NativeExecutor(model, info, threads)


def check_covered(config: ModelConfig, settings: EngineSettings) -> None:
    """Raises NotCovered for what the native executor does not compute and the torch executor does."""
    if settings.page_size % BLOCK:
        raise NotCovered("page-size", settings.page_size)
    if settings.kv_cache_dtype not in ("auto", "int8", resources.dtype(settings)):
        raise NotCovered("kv-cache-dtype", settings.kv_cache_dtype)


def kv_bytes_per_page(config: ModelConfig, weight_format: str, page_size: int, kv_format: str = "auto") -> int:
    """Bytes that one page takes: keys and values of `page_size` tokens in all layers, and the scales of int8."""
    elements = config.head_dim + -(-config.head_dim // BLOCK) * BLOCK
    of_a_head = elements + 2 * _SCALE_SIZE if kv_format == "int8" else elements * _ITEM_SIZES[weight_format]
    return config.num_layers * page_size * config.num_kv_heads * of_a_head


def load_model(
    config: ModelConfig,
    weights: Iterable[tuple[str, npt.NDArray[Any] | GgufBlocks]],
    info: ExecutorInfo,
    threads: int,
    formats: WeightFormats,
    *,
    kv_format: str = "auto",
) -> postroad_native.Model:
    """Builds a `postroad_native.Model` from (Hugging Face name, array) pairs as iter_stored gives them, in any order.

    Each array is packed before the next one is taken. Raises WeightError, with the tensor's name.
    """
    model = postroad_native.Model(
        model_fields(config),
        num_pages=info.num_pages,
        page_size=info.page_size,
        threads=threads,
        kv_format=kv_format,
        weight_format=formats.elements,
        quantization=formats.otherwise,
        tensor_quantization=dict(formats.by_tensor),
    )
    try:
        for name, stored in weights:
            if config.determines(name):
                continue
            if isinstance(stored, GgufBlocks):
                for part, blocks in separated(config, name, stored.data):
                    model.set_weight(part, blocks, blocks=stored.name)
                continue
            for part, rows in separated(config, name, stored):
                model.set_weight(part, rows if rows.dtype in _TAKEN else rows.astype(np.float32))
        model.finish()
    except ValueError as error:
        raise WeightError(str(error)) from error
    return model


def model_fields(config: ModelConfig) -> dict[str, Any]:
    """The model as `postroad_native.Model` wants it described."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "qkv_bias": config.qkv_bias,
        "o_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
        "qk_norm": config.qk_norm,
        "activation": config.activation,
        "post_norms": config.post_norms,
        "norm_offset": config.norm_offset,
        "embedding_scale": config.embedding_scale,
        "attention_scale": config.attention_scale,
        "attention_softcap": config.attention_softcap,
        "final_softcap": config.final_softcap,
        "layer_windows": [layer.window for layer in config.layers],
        "layer_ropes": [None if layer.rope is None else config.ropes.index(layer.rope) for layer in config.layers],
        "rope_inv_freqs": [inverse_frequencies(rope) for rope in config.ropes],
        "rope_attention_factors": [rope.attention_factor for rope in config.ropes],
    }
