"""Matrices in floating point of 8 bits (e4m3), half of what bfloat16 takes, with products of 8 bits.

A matrix has a scale for each of its outputs, and inputs get one for each row as they come, so that the largest value of
each is the largest that e4m3 has. Products are summed in float32. Embeddings, norms and the output projection stay as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder, Embedding, Linear
from services.engine.models.parallel import VocabParallelEmbedding, VocabParallelHead

E4M3 = torch.float8_e4m3fn
_LARGEST = torch.finfo(E4M3).max
_SMALLEST = 1e-12  # a row of zeros has a scale, too
_MULTIPLE = 16  # of rows and columns, for the kernels on CUDA


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """Stands for a `Linear`. weight: [out, in], e4m3; scales: [1, out], float32; bias: [out] or None."""

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: Linear, device: torch.device) -> Fp8Linear:
        weight, scales = quantized_rows(linear.weight.to(device))
        return cls(weight, scales.t().contiguous(), None if linear.bias is None else linear.bias.to(device))

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, in], bfloat16 (on a CPU float32, too) -> [rows, out]."""
        values, scales = quantized_rows(x)
        product = torch._scaled_mm(values, self.weight.t(), scale_a=scales, scale_b=self.scales, out_dtype=x.dtype)
        return product if self.bias is None else product.add_(self.bias)


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x: [rows, n] -> values, e4m3, likewise; and the scale of each row, [rows, 1], float32, to multiply them with."""
    x = x.float()
    scales = x.abs().amax(-1, keepdim=True).clamp_(min=_SMALLEST) / _LARGEST
    return (x / scales).clamp_(-_LARGEST, _LARGEST).to(E4M3), scales


def with_fp8_matrices(model: Decoder, device: torch.device | str) -> Decoder:
    """A copy on `device`, with the matrices of its layers in e4m3. It takes there what it keeps, and one matrix.

    Of a divided model each rank has scales for what it holds.
    """
    device = torch.device(device)
    embeddings = model.embeddings.to(device)
    embed, head = model.embed, model.lm_head
    assert isinstance(embed, (Embedding, VocabParallelEmbedding)), f"an embedding of another kind: {embed}"
    assert isinstance(head, (Linear, VocabParallelHead)), f"a head of another kind: {head}"
    is_tied = head.weight is model.embeddings
    return replace(
        model,
        embeddings=embeddings,
        embed=replace(embed, weight=embeddings),
        layers=tuple(_converted(layer, device) for layer in model.layers),
        norm=_converted(model.norm, device),
        lm_head=replace(head, weight=embeddings if is_tied else head.weight.to(device)),
        ropes=tuple(_converted(rope, device) for rope in model.ropes),
    )


def not_multiples(config: ModelConfig) -> str:
    """Which of a model's sizes rules e4m3 out; empty if none does."""
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "queries": config.q_size,
        "queries, keys and values": config.q_size + 2 * config.kv_size,
    }
    odd = [f"{name} {size}" for name, size in sizes.items() if size % _MULTIPLE]
    return f"fp8 needs sizes that are multiples of {_MULTIPLE}, unlike {', '.join(odd)}" if odd else ""


def _converted(part: Any, device: torch.device) -> Any:
    """A layer, or a part of one, as it is on `device`."""
    if isinstance(part, Linear):
        return Fp8Linear.of(part, device)
    if isinstance(part, Tensor):
        return part.to(device)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{f.name: _converted(getattr(part, f.name), device) for f in fields(part)})
    return part
