"""Attention on CUDA by flashinfer (arXiv 2501.01005), straight from the pages of the KV pool.

A step's decodes and its prefill chunks are planned once, for each of the windows that layers have, and then run in
every layer. For graphs of decodes there are wrappers of their own, one for each size and window: a plan then only
changes the content of tensors that the recorded kernels read.

flashinfer is handed in, not imported: it is installed where there is a GPU, and tests hand in a stand-in that takes its
calls on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from services.engine.executor.attention import FixedDecodes
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
        self._library = library
        self._workspace = torch.zeros(workspace_bytes, dtype=torch.uint8, device=pool.device)
        self._windows = [layer.window for layer in config.layers]
        self._problems = {window: _Problem.of(pool, config, window) for window in set(self._windows)}
        self._wrappers = {window: _Wrappers.of(library, self._workspace, p) for window, p in self._problems.items()}
        self._layers = [self._wrappers[window] for window in self._windows]

    def prepare(self, batch: StepBatch) -> Attend:
        page_size, uploads = self._pool.page_size, batch.uploads
        decodes = PageMetadata.of(batch.decodes, page_size, uploads) if batch.decodes else None
        prefills = PageMetadata.of(batch.prefills, page_size, uploads) if batch.prefills else None
        for window, problem in self._problems.items():
            if decodes is not None:
                problem.plan_decodes(self._wrappers[window].decode, decodes)
            if prefills is not None:
                problem.plan_prefills(self._wrappers[window].prefill, prefills)
        return _FlashInferStep(
            self._pool, self._layers, batch.slots, len(batch.decodes), has_prefills=bool(batch.prefills)
        ).attend

    def fixed_decodes(self, sizes: Sequence[int], pages_per_sequence: int) -> Sequence[FixedDecodes]:
        """They share the tensor that holds the page tables, which is the largest one."""
        most = max(sizes) * pages_per_sequence
        indices = torch.zeros(most, dtype=torch.int32, device=self._pool.device)
        return [self._fixed_decodes(size, indices) for size in sizes]

    def _fixed_decodes(self, size: int, indices: Tensor) -> _FlashInferDecodes:
        pages = {
            "paged_kv_indptr_buffer": indices.new_zeros(size + 1),
            "paged_kv_indices_buffer": indices,
            "paged_kv_last_page_len_buffer": indices.new_zeros(size),
        }
        make = self._library.BatchDecodeWithPagedKVCacheWrapper
        wrappers = {
            window: make(
                self._workspace, _LAYOUT, use_cuda_graph=True, use_tensor_cores=problem.uses_tensor_cores, **pages
            )
            for window, problem in self._problems.items()
        }
        slots = torch.zeros(size, dtype=torch.int64, device=self._pool.device)
        return _FlashInferDecodes(self._pool, self._problems, wrappers, [wrappers[w] for w in self._windows], slots)


@dataclass(frozen=True, slots=True)
class _Problem:
    """What a plan must know of the layers of one window."""

    sizes: tuple[int, int, int, int]  # query heads, KV heads, elements of a head, tokens of a page
    options: dict[str, Any]
    uses_tensor_cores: bool  # in decodes

    @classmethod
    def of(cls, pool: KvPool, config: ModelConfig, window: int | None) -> _Problem:
        group = config.num_heads // config.num_kv_heads
        return cls(
            sizes=(config.num_heads, config.num_kv_heads, config.head_dim, pool.page_size),
            options={
                "sm_scale": config.attention_scale,
                "window_left": -1 if window is None else window - 1,  # keys before the token's own
                "logits_soft_cap": config.attention_softcap,
                "q_data_type": pool.dtype,
                "kv_data_type": pool.stored_dtype,
            },
            uses_tensor_cores=group >= _TENSOR_CORES_FROM or group not in _GROUPS_WITHOUT_TENSOR_CORES,
        )

    def plan_decodes(self, wrapper: Any, pages: PageMetadata) -> None:
        wrapper.plan(pages.indptr, pages.indices, pages.last_page_len, *self.sizes, **self.options)

    def plan_prefills(self, wrapper: Any, pages: PageMetadata) -> None:
        tables = pages.indptr, pages.indices, pages.last_page_len
        wrapper.plan(pages.query_indptr, *tables, *self.sizes, causal=True, **self.options)


@dataclass(frozen=True, slots=True)
class _Wrappers:
    """flashinfer's two kinds of attention, for the layers of one window."""

    decode: Any
    prefill: Any

    @classmethod
    def of(cls, library: FlashInfer, workspace: Tensor, problem: _Problem) -> _Wrappers:
        make = library.BatchDecodeWithPagedKVCacheWrapper
        return cls(
            decode=make(workspace, _LAYOUT, use_tensor_cores=problem.uses_tensor_cores),
            prefill=library.BatchPrefillWithPagedKVCacheWrapper(workspace, _LAYOUT),
        )


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


@dataclass(frozen=True, slots=True)
class _FlashInferDecodes:
    """Implements `FixedDecodes`. A plan copies the page tables to where the recorded kernels read them."""

    pool: KvPool
    problems: Mapping[int | None, _Problem]  # by window, and so
    wrappers: Mapping[int | None, Any]
    layers: Sequence[Any]  # the wrapper of each layer
    slots: Tensor

    def fill(self, batch: StepBatch) -> None:
        self.slots.copy_(batch.slots)
        pages = PageMetadata.of(batch.decodes, self.pool.page_size, batch.uploads)
        for window, problem in self.problems.items():
            problem.plan_decodes(self.wrappers[window], pages)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.write(layer, self.slots, k, v)
        attended: Tensor = self.layers[layer].run(q.contiguous(), self.pool.pages(layer))
        return attended.flatten(1)
