"""Settings → weights and KV pool in memory → a TorchExecutor."""

from __future__ import annotations

import torch

from services.engine import hardware
from services.engine.executor.kv_pool import kv_bytes_per_page
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.files import ModelFiles
from services.engine.loading.source import ModelSource
from services.engine.loading.weights import iter_weights
from services.engine.models.config import ModelConfig
from services.engine.models.weights import load_model
from services.engine.settings import EngineSettings
from services.engine.startup import StartupError

KV_SHARE_OF_FREE_MEMORY = 0.25


def load_torch_executor(settings: EngineSettings, source: ModelSource, files: ModelFiles) -> TorchExecutor:
    """Loads the weights, then gives the KV pool its share of the memory that is free after that.

    Raises LoadingError, ModelError, and StartupError if not a single page fits.
    """
    torch.set_num_threads(settings.threads or hardware.usable_cores())
    config = ModelConfig.from_hf(files.config)
    dtype = _dtype(settings)
    model = load_model(config, iter_weights(source, files.config), dtype, "cpu")
    num_pages = settings.num_pages or _pages_in_memory(settings, kv_bytes_per_page(config, dtype, settings.page_size))
    return TorchExecutor(model, num_pages, settings.page_size, settings.max_model_len)


def _dtype(settings: EngineSettings) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.bfloat16 if hardware.computes_bfloat16() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]


def _pages_in_memory(settings: EngineSettings, page_bytes: int) -> int:
    budget = settings.kv_cache_memory or int(hardware.free_memory() * KV_SHARE_OF_FREE_MEMORY)
    if budget < page_bytes:
        raise StartupError(f"the KV pool's {budget} bytes do not hold one page of {page_bytes} bytes")
    return budget // page_bytes
