"""Settings → weights and KV pool in memory → a TorchExecutor."""

from __future__ import annotations

import torch

from services.engine import resources
from services.engine.device import Device
from services.engine.errors import StartupError
from services.engine.executor.kv_pool import kv_bytes_per_page
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.files import ModelFiles
from services.engine.loading.source import ModelSource
from services.engine.loading.weights import iter_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.fp8 import E4M3, not_multiples, with_fp8_matrices
from services.engine.models.weights import load_model
from services.engine.settings import EngineSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_torch_executor(settings: EngineSettings, source: ModelSource, files: ModelFiles) -> TorchExecutor:
    """Loads the weights, then gives the KV pool its share of the memory that is free after that.

    Raises LoadingError, ModelError, and StartupError if not a single page fits.
    """
    torch.set_num_threads(resources.num_threads(settings))
    dtype = torch_dtype(settings, resources.dtype(settings))
    model = load_decoder(settings, source, files, dtype, "cpu")
    kept = kv_dtype(settings, dtype)
    num_pages = resources.num_pages(settings, kv_bytes_per_page(model.config, kept, settings.page_size))
    return TorchExecutor(model, num_pages, settings.page_size, settings.max_model_len, kv_dtype=kept)


def load_decoder(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, dtype: torch.dtype, device: Device
) -> Decoder:
    """On `device`; in fp8 it is quantized on its way there. Raises LoadingError, ModelError or StartupError."""
    config = ModelConfig.from_hf(files.config, settings.max_model_len)
    weights = iter_weights(source, files.config)
    if settings.quantization != "fp8":
        return load_model(config, weights, dtype, device)
    if reason := not_multiples(config):
        raise StartupError(f"quantization fp8 cannot be had: {reason}")
    return with_fp8_matrices(load_model(config, weights, dtype, "cpu"), device)


def kv_dtype(settings: EngineSettings, dtype: torch.dtype) -> torch.dtype:
    """In which keys and values are kept."""
    return E4M3 if settings.kv_cache_dtype == "fp8" else dtype


def torch_dtype(settings: EngineSettings, auto: resources.Dtype) -> torch.dtype:
    """The type of weights and KV pool but for what is quantized; `auto` is what the device computes in. Raises
    StartupError where the settings want two different ones."""
    name = auto if settings.dtype == "auto" else settings.dtype
    if settings.kv_cache_dtype not in ("auto", "fp8", name):
        raise StartupError(
            f"the torch executor keeps the KV pool in the type of the weights, {name}: "
            f"kv-cache-dtype {settings.kv_cache_dtype} needs another executor or dtype"
        )
    return _DTYPES[name]
