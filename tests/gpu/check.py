"""`python -m tests.gpu.check`: the GPU path on a real GPU, in a few minutes, as a table.

Correctness against transformers; decodes and prefills beside the bandwidth and the matrix products that are measured in
the same run; the offline workload of mini-sglang with random weights. Exits with status 1 where a check failed, and 2
where there is no GPU.
"""

from __future__ import annotations

import itertools
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial

import torch

from services.engine.cuda_startup import FP8_CAPABILITY, find_flashinfer, fitted_executor
from services.engine.device import why_no_cuda
from services.engine.executor.cuda_graphs import CudaRecorder
from services.engine.executor.cuda_memory import CudaMemory
from services.engine.executor.flashinfer_attention import FlashInferAttention
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.models.decoder import Decoder
from services.engine.settings import EngineSettings
from tests.gpu import correctness, speed
from tests.gpu.rows import Row, table
from tests.gpu.variants import TORCH, Variant


def main() -> int:
    if reason := why_no_cuda():
        print(f"no GPU, nothing was checked: {reason}")
        return 2
    started = time.perf_counter()
    variants = {"torch": TORCH}
    try:
        flashinfer = partial(FlashInferAttention, library=find_flashinfer())
        variants["flashinfer"] = Variant(flashinfer)
        variants["flashinfer, graphs"] = Variant(flashinfer, CudaRecorder)
        variants["flashinfer, graphs, overlap"] = Variant(flashinfer, CudaRecorder, overlaps=True)
        if torch.cuda.get_device_capability() >= FP8_CAPABILITY:
            variants["flashinfer, graphs, fp8"] = Variant.in_fp8(flashinfer, CudaRecorder)
        missing: tuple[Row, ...] = ()
    except ImportError as error:
        missing = (Row("flashinfer", f"not installed ({error})", passed=False),)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}\n")
    rows = list(
        _shown(
            itertools.chain(
                missing,
                correctness.rows(variants, "cuda"),
                speed.rows(variants, "cuda", speed.FULL, _fitted),
            )
        )
    )
    print(f"\n{table(rows)}\n\n{time.perf_counter() - started:.0f} s")
    return 1 if any(row.passed is False for row in rows) else 0


def _shown(rows: Iterable[Row]) -> Iterator[Row]:
    """Each at once on standard error, so that an end before the table leaves what was found."""
    for row in rows:
        print(row, file=sys.stderr, flush=True)
        yield row


def _fitted(model: Decoder, variant: Variant) -> TorchExecutor:
    """As an engine would have it."""
    settings = EngineSettings(
        max_num_seqs=speed.FULL.max_num_seqs, max_batch_tokens=speed.FULL.max_batch_tokens, max_model_len=4096
    )
    graphs = variant.graphs(speed.FULL.max_num_seqs)
    memory, make = CudaMemory(), variant.make_attention
    return fitted_executor(settings, variant.model(model), make, memory, graphs=graphs, kv_dtype=variant.kv_dtype)


if __name__ == "__main__":
    sys.exit(main())
