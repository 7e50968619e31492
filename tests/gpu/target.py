"""On what the check runs: the GPU, or, to try the check itself, a CPU with stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from services.engine.cuda_startup import FP8_CAPABILITY, find_flashinfer, fitted_executor
from services.engine.executor.cuda_memory import CudaMemory, DeviceMemory
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.models.decoder import Decoder
from services.engine.settings import EngineSettings
from tests.engine.models.reference import FAMILIES
from tests.gpu import ranks
from tests.gpu.correctness import MODELS
from tests.gpu.rows import Row
from tests.gpu.speed import FULL, Sizes
from tests.gpu.variants import Variant, variants_on


@dataclass(frozen=True)
class Target:
    device: str
    title: str
    variants: Mapping[str, Variant]
    models: Mapping[str, dict[str, Any]]  # that are compared with transformers
    sizes: Sizes
    memory: DeviceMemory
    together: ranks.Together | None  # None where there are too few GPUs for several ranks
    missing: tuple[Row, ...] = ()  # of what cannot be checked

    def fitted(self, model: Decoder, variant: Variant) -> TorchExecutor:
        """As an engine would have it."""
        settings = EngineSettings(
            max_num_seqs=self.sizes.max_num_seqs,
            max_batch_tokens=self.sizes.max_batch_tokens,
            max_model_len=min(2 * self.sizes.longest, model.config.max_position_embeddings),
        )
        return fitted_executor(
            settings,
            variant.model(model),
            variant.fitted_options(self.sizes.max_num_seqs),
            self.memory,
        )


def gpu() -> Target:
    """The CUDA device that is there, and a second one where there is one."""
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    missing: list[Row] = []
    try:
        find_flashinfer()
    except ImportError as error:
        missing.append(Row("flashinfer", f"not installed ({error})", passed=False))
    if torch.cuda.get_device_capability() < FP8_CAPABILITY:
        missing.append(Row("fp8", "the device has no such products"))
    together = ranks.on_gpus if torch.cuda.device_count() >= ranks.SIZE else None
    return Target("cuda", title, variants_on("cuda"), MODELS, FULL, CudaMemory(), together, tuple(missing))


def cpu() -> Target:
    """In seconds, and all times mean nothing: flashinfer and graphs are stand-ins, sizes are small."""
    return Target(
        "cpu",
        "A dry run on the CPU, with stand-ins for flashinfer, graphs and NCCL: no figure means anything",
        variants_on("cpu"),
        {name: MODELS[name] for name in ("qwen3, 8 heads, 2 KV heads", "gemma2")},
        Sizes(FAMILIES["llama"], 1 << 16, 64, (1, 3), 20, 40, 1, 6, 2, 9, 4, 16),
        _PretendedMemory(),
        ranks.as_threads,
    )


class _PretendedMemory:
    """A device of a megabyte, of which steps take none."""

    def total(self) -> int:
        return 1 << 20

    def free(self) -> int:
        return 1 << 20

    def peak(self, run: Callable[[], None]) -> int:
        run()
        return 0
