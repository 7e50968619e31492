"""The paged KV pool: keys and values of all sequences, in pages of `page_size` tokens that the scheduler hands out."""

from __future__ import annotations

import torch
from torch import Tensor

from services.engine.models.config import ModelConfig

DEFAULT_PAGE_SIZE = 16


def kv_bytes_per_page(config: ModelConfig, dtype: torch.dtype, page_size: int = DEFAULT_PAGE_SIZE) -> int:
    """Bytes that one page takes: keys and values of `page_size` tokens in all layers."""
    return 2 * config.num_layers * page_size * config.kv_size * dtype.itemsize


class KvPool:
    """Keys and values by layer, page and slot. A flat slot number is `page * page_size + slot in the page`.

    They come and go in `dtype`, and are kept in `stored_dtype`: that, or e4m3, which has no scale and ends at 448.

    Always finite: attention may read slots that nobody has written yet, with weight 0, and 0 times NaN would be NaN.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        stored_dtype: torch.dtype | None = None,
    ) -> None:
        shape = (config.num_layers, num_pages, page_size, config.num_kv_heads, config.head_dim)
        self.num_pages = num_pages
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        self.stored_dtype = stored_dtype or dtype
        self._keys = torch.zeros(shape, dtype=self.stored_dtype, device=device)
        self._values = torch.zeros(shape, dtype=self.stored_dtype, device=device)
        # Views by layer, made once: a step takes each of them in every layer.
        self._layer_pages = list(zip(self._keys.unbind(), self._values.unbind(), strict=True))
        self._layer_slots = [
            (_movable(keys).flatten(0, 1), _movable(values).flatten(0, 1)) for keys, values in self._layer_pages
        ]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """slots: [tokens], int64, each at most once; keys, values: [tokens, num_kv_heads, head_dim]."""
        layer_keys, layer_values = self._layer_slots[layer]
        layer_keys.index_copy_(0, slots, self._stored(keys))
        layer_values.index_copy_(0, slots, self._stored(values))

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """The layer's keys and values themselves, each [num_pages, page_size, num_kv_heads, head_dim]."""
        return self._layer_pages[layer]

    def gather(self, layer: int, pages: Tensor) -> tuple[Tensor, Tensor]:
        """pages: [n], int64 -> copies of their keys and values, each [n * page_size, num_kv_heads, head_dim]."""
        keys, values = (part.index_select(0, pages).flatten(0, 1) for part in self._layer_pages[layer])
        return keys.to(self.dtype), values.to(self.dtype)

    def clear(self) -> None:
        """Forgets everything, as after a step that failed and may have left values that are not finite."""
        _movable(self._keys).zero_()
        _movable(self._values).zero_()

    def _stored(self, x: Tensor) -> Tensor:
        if self.stored_dtype == self.dtype:
            return x
        limits = torch.finfo(self.stored_dtype)
        return _movable(x.clamp(limits.min, limits.max).to(self.stored_dtype))


def _movable(x: Tensor) -> Tensor:
    """As bytes if elements are bytes: torch does not copy those of 8-bit types by index."""
    return x.view(torch.uint8) if x.itemsize == 1 else x
