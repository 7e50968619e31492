"""Truncated sampling by flashinfer's kernels beside sorting: what is kept, and the time of a draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from services.engine.executor.flashinfer_truncation import FlashInferTruncation
from services.engine.executor.truncation import DrawTruncated, draw_truncated, keep_truncated
from tests.gpu.rows import Row
from tests.gpu.speed import Sizes, median_seconds
from tests.gpu.variants import Variant

TOP_K, TOP_P = 50, 0.9


def rows(variants: Mapping[str, Variant], device: str, sizes: Sizes) -> Iterator[Row]:
    """Rows of a whole vocabulary, half of them with equal weights."""
    kernels = next((variant.kernels for variant in variants.values() if variant.kernels is not None), None)
    if kernels is None:
        return
    batch, vocab_size = sizes.batches[-1], sizes.model["vocab_size"]
    noise = torch.randn(batch, vocab_size, generator=torch.Generator().manual_seed(0))
    noise[::2] = noise[::2].round()
    weights = (noise - noise.amax(-1, keepdim=True)).exp().to(device)
    top_k = torch.full((batch,), TOP_K, device=device)
    top_p = torch.full((batch,), TOP_P, dtype=torch.float64, device=device)
    uniforms = torch.rand(batch, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    truncation = FlashInferTruncation(kernels)
    for name, limits in {"top_k": (top_k, None), "top_p": (None, top_p), "both": (top_k, top_p)}.items():
        differ = (truncation.kept(weights, *limits) != keep_truncated(weights, *limits)).sum(-1)
        most = int(differ.max())  # a sum of float32 may reach top_p a token sooner or later
        what = f"sampling, {name}: tokens kept as by sorting"
        yield Row(what, f"{most} differ at most", f"{batch} rows of {vocab_size}", passed=most <= (name != "top_k"))

    def timed(draw: DrawTruncated) -> str:
        seconds = median_seconds(lambda: draw(weights, top_k, top_p, uniforms), device, sizes.repeats)
        return f"{seconds * 1e3:.2f} ms"

    found, beside = timed(truncation.draw), timed(draw_truncated)
    yield Row(f"sampling, both: a draw of {batch}", found, f"by sorting: {beside}")
