"""Settings → weights and KV pool in memory → a TorchExecutor."""

from __future__ import annotations

import torch

from services.engine import resources
from services.engine.errors import StartupError
from services.engine.executor.kv_pool import kv_bytes_per_page
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.files import ModelFiles
from services.engine.loading.source import ModelSource
from services.engine.loading.weights import iter_weights
from services.engine.models.config import ModelConfig
from services.engine.models.weights import load_model
from services.engine.settings import EngineSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_torch_executor(settings: EngineSettings, source: ModelSource, files: ModelFiles) -> TorchExecutor:
    """Loads the weights, then gives the KV pool its share of the memory that is free after that.

    Raises LoadingError, ModelError, and StartupError if not a single page fits.
    """
    torch.set_num_threads(resources.num_threads(settings))
    dtype = torch_dtype(settings, resources.dtype(settings))
    config = ModelConfig.from_hf(files.config, settings.max_model_len)
    model = load_model(config, iter_weights(source, files.config), dtype, "cpu")
    num_pages = resources.num_pages(settings, kv_bytes_per_page(config, dtype, settings.page_size))
    return TorchExecutor(model, num_pages, settings.page_size, settings.max_model_len)


def torch_dtype(settings: EngineSettings, auto: resources.Dtype) -> torch.dtype:
    """The type of weights and KV pool; `auto` is what the device computes in. Raises StartupError where the settings
    want two different ones."""
    name = auto if settings.dtype == "auto" else settings.dtype
    if settings.kv_cache_dtype not in ("auto", name):
        raise StartupError(
            f"the torch executor keeps the KV pool in the type of the weights, {name}: "
            f"kv-cache-dtype {settings.kv_cache_dtype} needs another executor or dtype"
        )
    return _DTYPES[name]
