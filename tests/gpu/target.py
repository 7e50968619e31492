"""On what the check runs: the GPU, or, to try the check itself, a CPU with stand-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from services.engine.cuda_startup import FP8_CAPABILITY, FlashInferPackage, find_flashinfer, fitted_executor
from services.engine.executor.cuda_graphs import CudaRecorder
from services.engine.executor.cuda_memory import CudaMemory, DeviceMemory
from services.engine.executor.decode_graphs import Recorder
from services.engine.executor.flashinfer_attention import WORKSPACE_BYTES, FlashInferAttention
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.models.decoder import Decoder
from services.engine.settings import EngineSettings
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.models.reference import FAMILIES
from tests.gpu.correctness import MODELS
from tests.gpu.rows import Row
from tests.gpu.speed import FULL, Sizes
from tests.gpu.variants import TORCH, Variant


@dataclass(frozen=True)
class Target:
    device: str
    title: str
    variants: Mapping[str, Variant]
    models: Mapping[str, dict[str, Any]]  # that are compared with transformers
    sizes: Sizes
    memory: DeviceMemory
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
            variant.make_attention,
            self.memory,
            graphs=variant.graphs(self.sizes.max_num_seqs),
            kv_dtype=variant.kv_dtype,
        )


def gpu() -> Target:
    """The CUDA device that is there."""
    title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    has_fp8 = torch.cuda.get_device_capability() >= FP8_CAPABILITY
    try:
        variants = _variants(find_flashinfer(), WORKSPACE_BYTES, CudaRecorder, has_fp8=has_fp8)
        missing = () if has_fp8 else (Row("fp8", "the device has no such products"),)
    except ImportError as error:
        variants, missing = {"torch": TORCH}, (Row("flashinfer", f"not installed ({error})", passed=False),)
    return Target("cuda", title, variants, MODELS, FULL, CudaMemory(), missing)


def cpu() -> Target:
    """In seconds, and all times mean nothing: flashinfer and graphs are stand-ins, sizes are small."""
    return Target(
        "cpu",
        "A dry run on the CPU, with stand-ins for flashinfer and for graphs: no figure means anything",
        _variants(FlashInferOnCpu(), 64, RecorderOnCpu, has_fp8=True),
        {name: MODELS[name] for name in ("qwen3, 8 heads, 2 KV heads", "gemma2")},
        Sizes(FAMILIES["llama"], 1 << 16, 64, (1, 3), 20, 40, 1, 6, 2, 9, 4, 16),
        _PretendedMemory(),
    )


def _variants(
    library: FlashInferPackage, workspace_bytes: int, recorder: Callable[[], Recorder], *, has_fp8: bool
) -> dict[str, Variant]:
    attention = partial(FlashInferAttention, library=library, workspace_bytes=workspace_bytes)
    plain = Variant(attention, kernels=library)
    graphs = replace(plain, make_recorder=recorder)
    variants = {
        "torch": TORCH,
        "flashinfer": plain,
        "flashinfer, graphs": graphs,
        "flashinfer, graphs, overlap": replace(graphs, overlaps=True),
    }
    return variants | ({"flashinfer, graphs, fp8": graphs.in_fp8()} if has_fp8 else {})


class _PretendedMemory:
    """A device of a megabyte, of which steps take none."""

    def total(self) -> int:
        return 1 << 20

    def free(self) -> int:
        return 1 << 20

    def peak(self, run: Callable[[], None]) -> int:
        run()
        return 0
