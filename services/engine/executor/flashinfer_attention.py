"""Attention on CUDA by flashinfer (arXiv 2501.01005), straight from the pages of the KV pool.

A step's decodes and its prefill chunks are planned once, for each of the windows that layers have, and then run in
every layer. flashinfer is handed in, not imported: it is installed where there is a GPU, and tests hand in a stand-in
that takes its calls on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from services.engine.executor.batch import StepBatch
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.page_metadata import PageMetadata
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Attend

HEAD_DIMS = (64, 128, 256)  # for which its kernels are compiled
DTYPES = (torch.bfloat16, torch.float16)
WORKSPACE_BYTES = 384 << 20  # for partial results of long sequences, whose keys it divides among blocks of threads
_LAYOUT = "NHD"  # tokens before heads, as in the KV pool
# Query heads per KV head. From 4 on tensor cores are faster; below, there are kernels without them for these.
_TENSOR_CORES_FROM = 4
_GROUPS_WITHOUT_TENSOR_CORES = (1, 2, 3)


class FlashInfer(Protocol):
    """What is used of the package `flashinfer`. Both take a workspace and the layout of pages."""

    @property
    def BatchDecodeWithPagedKVCacheWrapper(self) -> Any: ...

    @property
    def BatchPrefillWithPagedKVCacheWrapper(self) -> Any: ...


def not_covered(config: ModelConfig, dtype: torch.dtype) -> str:
    """Why flashinfer does not compute a model's attention; empty if it does."""
    if config.head_dim not in HEAD_DIMS:
        return f"flashinfer has no kernels for heads of {config.head_dim}, only of {', '.join(map(str, HEAD_DIMS))}"
    if dtype not in DTYPES:
        return f"flashinfer computes in bfloat16, not in {str(dtype).removeprefix('torch.')}"
    return ""


class FlashInferAttention:
    """Implements `AttentionBackend` for models that are covered (`not_covered`)."""

    def __init__(
        self, pool: KvPool, config: ModelConfig, library: FlashInfer, workspace_bytes: int = WORKSPACE_BYTES
    ) -> None:
        self._pool = pool
        workspace = torch.zeros(workspace_bytes, dtype=torch.uint8, device=pool.device)
        by_window = {
            window: _Wrappers.of(library, workspace, pool, config, window)
            for window in {layer.window for layer in config.layers}
        }
        self._wrappers = list(by_window.values())
        self._layers = [by_window[layer.window] for layer in config.layers]

    def prepare(self, batch: StepBatch) -> Attend:
        page_size = self._pool.page_size
        decodes = PageMetadata.of(batch.decodes, page_size) if batch.decodes else None
        prefills = PageMetadata.of(batch.prefills, page_size) if batch.prefills else None
        for wrappers in self._wrappers:
            wrappers.plan(decodes, prefills)
        return _FlashInferStep(
            self._pool, self._layers, batch.slots, len(batch.decodes), has_prefills=bool(batch.prefills)
        ).attend


@dataclass(frozen=True, slots=True)
class _Wrappers:
    """flashinfer's two kinds of attention, for the layers of one window."""

    decode: Any
    prefill: Any
    sizes: tuple[int, int, int, int]  # query heads, KV heads, elements of a head, tokens of a page
    options: dict[str, Any]

    @classmethod
    def of(
        cls, library: FlashInfer, workspace: Tensor, pool: KvPool, config: ModelConfig, window: int | None
    ) -> _Wrappers:
        group = config.num_heads // config.num_kv_heads
        tensor_cores = group >= _TENSOR_CORES_FROM or group not in _GROUPS_WITHOUT_TENSOR_CORES
        return cls(
            decode=library.BatchDecodeWithPagedKVCacheWrapper(workspace, _LAYOUT, use_tensor_cores=tensor_cores),
            prefill=library.BatchPrefillWithPagedKVCacheWrapper(workspace, _LAYOUT),
            sizes=(config.num_heads, config.num_kv_heads, config.head_dim, pool.page_size),
            options={
                "sm_scale": config.attention_scale,
                "window_left": -1 if window is None else window - 1,  # keys before the token's own
                "logits_soft_cap": config.attention_softcap,
                "q_data_type": pool.dtype,
                "kv_data_type": pool.dtype,
            },
        )

    def plan(self, decodes: PageMetadata | None, prefills: PageMetadata | None) -> None:
        if decodes is not None:
            self.decode.plan(decodes.indptr, decodes.indices, decodes.last_page_len, *self.sizes, **self.options)
        if prefills is not None:
            pages = prefills.indptr, prefills.indices, prefills.last_page_len
            self.prefill.plan(prefills.query_indptr, *pages, *self.sizes, causal=True, **self.options)


@dataclass(frozen=True, slots=True)
class _FlashInferStep:
    pool: KvPool
    layers: Sequence[_Wrappers]
    slots: Tensor
    num_decodes: int  # rows, before those of the prefill chunks
    has_prefills: bool

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.write(layer, self.slots, k, v)
        wrappers, pages, q = self.layers[layer], self.pool.pages(layer), q.contiguous()
        parts: list[Tensor] = []
        if self.num_decodes:
            parts.append(wrappers.decode.run(q[: self.num_decodes], pages))
        if self.has_prefills:
            parts.append(wrappers.prefill.run(q[self.num_decodes :], pages))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)
