"""Settings → weights in memory, whole or one rank's part of them, and a TorchExecutor on the CPU."""

from __future__ import annotations

import torch

from services.engine import resources
from services.engine.device import Device, chosen_dtype
from services.engine.errors import StartupError
from services.engine.executor.kv_pool import kv_bytes_per_page
from services.engine.executor.model_runner import ModelRunner, RunnerOptions
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.files import ModelFiles
from services.engine.loading.source import ModelSource
from services.engine.loading.weights import iter_lazily, iter_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.fp8 import E4M3, not_multiples, with_fp8_matrices
from services.engine.models.parallel import Collectives
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_model, load_shard
from services.engine.settings import EngineSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_torch_executor(settings: EngineSettings, source: ModelSource, files: ModelFiles) -> TorchExecutor:
    """Loads the weights, then gives the KV pool its share of the memory that is free after that.

    Raises LoadingError, ModelError, and StartupError if not a single page fits.
    """
    model, options, num_pages = load_on_cpu(settings, source, files)
    return TorchExecutor(ModelRunner(model, num_pages, settings.page_size, settings.max_model_len, options))


def load_on_cpu(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, *, collectives: Collectives | None = None
) -> tuple[Decoder, RunnerOptions, int]:
    """The model or, with `collectives`, a rank's part of it; how it is run; and the pages for which there is room."""
    torch.set_num_threads(resources.num_threads(settings))
    dtype = torch_dtype(settings, "cpu")
    model = load_decoder(settings, source, files, dtype, "cpu", collectives=collectives)
    options = RunnerOptions(kv_dtype=kv_dtype(settings, dtype), collectives=collectives)
    page_bytes = kv_bytes_per_page(model.config, kv_dtype(settings, dtype), settings.page_size)
    return model, options, resources.num_pages(settings, page_bytes)


def load_decoder(
    settings: EngineSettings,
    source: ModelSource,
    files: ModelFiles,
    dtype: torch.dtype,
    device: Device,
    *,
    collectives: Collectives | None = None,
) -> Decoder:
    """On `device`; in fp8 it is quantized on its way there. With `collectives` it is the part of the settings' rank,
    and nothing else is read. Raises LoadingError, ModelError or StartupError."""
    config = ModelConfig.from_hf(files.config, settings.max_model_len)
    shard = Shard.of(config, settings.rank, settings.tensor_parallel_size)

    def load(place: Device) -> Decoder:
        if collectives is None:
            return load_model(config, iter_weights(source, files.config), dtype, place)
        return load_shard(shard, iter_lazily(source, files.config), dtype, place, collectives)

    if settings.quantization != "fp8":
        return load(device)
    if reason := not_multiples(config if collectives is None else shard.local_config):
        raise StartupError(f"quantization fp8 cannot be had: {reason}")
    return with_fp8_matrices(load("cpu"), device)


def kv_dtype(settings: EngineSettings, dtype: torch.dtype) -> torch.dtype:
    """In which keys and values are kept."""
    return E4M3 if settings.kv_cache_dtype == "fp8" else dtype


def torch_dtype(settings: EngineSettings, device: Device) -> torch.dtype:
    """The type of weights and KV pool but for what is quantized. Raises StartupError where the settings want two
    different ones."""
    name = chosen_dtype(settings, device)
    if settings.kv_cache_dtype not in ("auto", "fp8", name):
        raise StartupError(
            f"the torch executor keeps the KV pool in the type of the weights, {name}: "
            f"kv-cache-dtype {settings.kv_cache_dtype} needs another executor or dtype"
        )
    return _DTYPES[name]
