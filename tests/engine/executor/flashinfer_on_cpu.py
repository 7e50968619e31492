"""A stand-in for the package flashinfer: what is used of it, with its own signatures (0.6), computed plainly.

It reads nothing but what its documentation says that the kernels read: the pages in `indices`, as far as
`last_page_len` goes. Arguments that are not of its documented shape or type are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Paged:
    """What both wrappers do once their plan is known."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert not float_workspace_buffer.any()
        assert kv_layout == "NHD"
        self.num_plans = 0

    def _keep(
        self,
        *,
        queries: Tensor,
        pages: tuple[Tensor, Tensor, Tensor],
        sizes: tuple[int, int, int, int],
        scale: float,
        window_left: int,
        cap: float,
        dtypes: tuple[torch.dtype, torch.dtype],
    ) -> None:
        indptr, indices, last_page_len = pages
        for tensor in (queries, *pages):
            assert (tensor.dtype, tensor.device.type, tensor.dim()) == (torch.int32, "cpu", 1)
        assert len(queries) == len(indptr) == len(last_page_len) + 1
        assert indptr[-1] == len(indices)
        assert (last_page_len >= 1).all()
        assert (last_page_len <= sizes[3]).all()
        self._queries, self._pages, self._sizes = queries, pages, sizes
        self._scale, self._window_left, self._cap, self._dtypes = scale, window_left, cap, dtypes
        self.num_plans += 1

    def _attend(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        num_heads, num_kv_heads, head_dim, page_size = self._sizes
        assert q.shape == (self._queries[-1], num_heads, head_dim)
        assert q.is_contiguous()
        assert (q.dtype, paged_kv_cache[0].dtype) == self._dtypes
        for cache in paged_kv_cache:
            assert cache.shape[1:] == (page_size, num_kv_heads, head_dim)
        indptr, indices, last_page_len = self._pages
        rows = []
        for i in range(len(last_page_len)):
            table = indices[indptr[i] : indptr[i + 1]].long()
            kv_len = (len(table) - 1) * page_size + int(last_page_len[i])
            keys, values = (
                cache[table].to(q.dtype).flatten(0, 1)[:kv_len].repeat_interleave(num_heads // num_kv_heads, 1)
                for cache in paged_kv_cache
            )
            rows.append(self._one(q[self._queries[i] : self._queries[i + 1]], keys, values))
        return torch.cat(rows)

    def _one(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = torch.einsum("qhd,khd->hqk", q, keys) * self._scale
        if self._cap > 0:
            scores = torch.tanh(scores / self._cap) * self._cap
        # Queries are the sequence's last tokens; the window counts keys before a query's own.
        positions = torch.arange(len(keys) - len(q), len(keys))[:, None]
        distance = positions - torch.arange(len(keys))
        hidden = distance < 0
        if self._window_left >= 0:
            hidden |= distance > self._window_left
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


class BatchDecodeWithPagedKVCacheWrapper(_Paged):
    def __init__(  # noqa: PLR0917 – its own signature
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self.use_tensor_cores = use_tensor_cores
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None
        if use_cuda_graph:
            assert paged_kv_indptr_buffer is not None
            assert paged_kv_indices_buffer is not None
            assert paged_kv_last_page_len_buffer is not None
            assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1
            self._buffers = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer

    def plan(  # noqa: PLR0917 – its own signature
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
    ) -> None:
        assert self.use_tensor_cores or num_qo_heads // num_kv_heads in (1, 2, 3, 4, 6, 8)
        assert kv_data_type in (q_data_type, torch.float8_e4m3fn)
        if self._buffers is not None:
            assert len(last_page_len) == len(self._buffers[2]), "the batch size should be fixed in cudagraph mode"
            for buffer, values in zip(self._buffers, (indptr, indices, last_page_len), strict=True):
                buffer[: len(values)].copy_(values)
        self._keep(
            queries=torch.arange(len(indptr), dtype=torch.int32),
            pages=(indptr, indices, last_page_len),
            sizes=(num_qo_heads, num_kv_heads, head_dim, page_size),
            scale=head_dim**-0.5 if sm_scale is None else sm_scale,
            window_left=window_left,
            cap=logits_soft_cap or 0.0,
            dtypes=(q_data_type, kv_data_type),
        )

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        return self._attend(q, paged_kv_cache) if self._buffers is None else self._attend_fixed(q, paged_kv_cache)

    def _attend_fixed(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        """From the buffers alone, in operations whose shapes do not depend on what is in them."""
        assert self._buffers is not None
        indptr, indices, last_page_len = (buffer.long() for buffer in self._buffers)
        num_heads, num_kv_heads, head_dim, page_size = self._sizes
        assert q.shape == (len(last_page_len), num_heads, head_dim)
        assert q.is_contiguous()
        assert (q.dtype, paged_kv_cache[0].dtype) == self._dtypes
        longest = len(indices) // len(last_page_len)
        places = (indptr[:-1, None] + torch.arange(longest)).clamp(max=len(indices) - 1)
        ends = (indptr.diff() - 1) * page_size + last_page_len
        tokens = torch.arange(longest * page_size)
        hidden = tokens >= ends[:, None]
        if self._window_left >= 0:
            hidden |= tokens < ends[:, None] - 1 - self._window_left
        keys, values = (
            cache[indices[places]].to(q.dtype).flatten(1, 2).repeat_interleave(num_heads // num_kv_heads, 2)
            for cache in paged_kv_cache
        )
        scores = torch.einsum("bhd,bkhd->bhk", q, keys) * self._scale
        if self._cap > 0:
            scores = torch.tanh(scores / self._cap) * self._cap
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return torch.einsum("bhk,bkhd->bhd", weights, values)


class BatchPrefillWithPagedKVCacheWrapper(_Paged):
    def plan(  # noqa: PLR0917 – its own signature
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        assert causal
        assert kv_data_type in (q_data_type, torch.float8_e4m3fn)
        self._keep(
            queries=qo_indptr,
            pages=(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len),
            sizes=(num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            scale=head_dim_qk**-0.5 if sm_scale is None else sm_scale,
            window_left=window_left,
            cap=logits_soft_cap or 0.0,
            dtypes=(q_data_type, kv_data_type),
        )

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        return self._attend(q, paged_kv_cache)


class FlashInferOnCpu:
    """In the place of the module. `made` holds the wrappers in the order in which they were made."""

    def __init__(self) -> None:
        self.made: list[BatchDecodeWithPagedKVCacheWrapper | BatchPrefillWithPagedKVCacheWrapper] = []

    def BatchDecodeWithPagedKVCacheWrapper(
        self, workspace: Tensor, layout: str, **options: Any
    ) -> BatchDecodeWithPagedKVCacheWrapper:
        wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, layout, **options)
        self.made.append(wrapper)
        return wrapper

    def BatchPrefillWithPagedKVCacheWrapper(
        self, workspace: Tensor, layout: str
    ) -> BatchPrefillWithPagedKVCacheWrapper:
        wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, layout)
        self.made.append(wrapper)
        return wrapper

    def rmsnorm(self, input: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
        return _normed(input, weight.float(), eps)

    def gemma_rmsnorm(self, input: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
        return _normed(input, weight.float() + 1.0, eps)

    def fused_add_rmsnorm(self, input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
        residual += input
        input.copy_(_normed(residual, weight.float(), eps))

    def gemma_fused_add_rmsnorm(self, input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
        residual += input
        input.copy_(_normed(residual, weight.float() + 1.0, eps))

    def silu_and_mul(self, input: Tensor) -> Tensor:
        gate, up = _halves(input)
        return (torch.nn.functional.silu(gate) * up).to(input.dtype)

    def gelu_tanh_and_mul(self, input: Tensor) -> Tensor:
        gate, up = _halves(input)
        return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(input.dtype)

    def top_k_renorm_probs(self, probs: Tensor, top_k: Tensor) -> Tensor:
        """Keeps the k heaviest, and all that are as heavy as the last of these."""
        _check_filter(probs, top_k, torch.int32)
        assert (top_k >= 1).all()
        ranked = probs.sort(descending=True).values
        pivots = ranked.gather(1, top_k.clamp(max=probs.shape[1]).long()[:, None] - 1)
        return _renormalised(probs, pivots)

    def top_p_renorm_probs(self, probs: Tensor, top_p: Tensor, is_deterministic: bool = False) -> Tensor:
        """Keeps the fewest weights, with all of each, that hold top_p."""
        _check_filter(probs, top_p, torch.float32)
        assert is_deterministic, "sums would depend on the order of additions"
        assert ((top_p > 0) & (top_p <= 1)).all()
        assert probs.sum(-1).sub(1).abs().max() < 1e-3, "probabilities"
        ranked = probs.double().sort(descending=True).values
        reached = ranked.cumsum(-1) >= top_p.double()[:, None] - 1e-7  # a kernel's sums are of float32
        last = reached.int().argmax(-1, keepdim=True).where(reached.any(-1, keepdim=True), probs.shape[1] - 1)
        return _renormalised(probs, ranked.gather(1, last).float())

    def apply_rope_with_cos_sin_cache_inplace(
        self, positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor
    ) -> None:
        assert cos_sin_cache.dtype == torch.float32
        assert positions.is_contiguous()
        cos, sin = cos_sin_cache[positions][:, None].chunk(2, -1)
        half = cos.shape[-1]
        for part in (query, key):
            assert part.stride(-1) == 1
            heads = part.view(len(positions), -1, head_size)
            first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
            heads[..., : 2 * half] = turned.to(part.dtype)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    assert x.dim() in (2, 3)
    assert x.stride(-1) == 1
    return (x.float() * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)


def _check_filter(probs: Tensor, limits: Tensor, dtype: torch.dtype) -> None:
    assert (probs.dtype, probs.dim(), probs.is_contiguous()) == (torch.float32, 2, True)
    assert (limits.dtype, limits.shape) == (dtype, probs.shape[:1])
    assert not probs.isnan().any(), "the search for a threshold would not end"


def _renormalised(probs: Tensor, pivots: Tensor) -> Tensor:
    kept = probs.where(probs >= pivots, 0.0)
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-8)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    assert x.is_contiguous()
    assert x.shape[-1] * x.itemsize % 16 == 0
    gate, up = x.float().chunk(2, -1)
    return gate, up
