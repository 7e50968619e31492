"""Linear layers of integers in numpy: what the kernels compute, but for the rounding of sums in float32."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import postroad_native
from gguf.constants import GGMLQuantizationType

from services.engine.models.config import ModelConfig
from services.engine.native_startup import model_fields
from tests.engine.native.stepping import PAGE_SIZE

Floats = npt.NDArray[np.float32]

GROUP = 32
FORMATS = ("int8", "int8_group32", "int4", "int4_group32")
PER_OUTPUT = ("int8", "int4")  # a weight's scale is its output's, so activations share one, too
BLOCKS = {
    "q4_0": GGMLQuantizationType.Q4_0,
    "q4_1": GGMLQuantizationType.Q4_1,
    "q8_0": GGMLQuantizationType.Q8_0,
}


def rounded_activations(rows: Floats, quantization: str) -> Floats:
    """Each group of neighbours to multiples of a 127th of its largest magnitude. Where a row is one group, of ten times
    the mean magnitude if that is less, but not of less than a 128th of the largest. rows: [rows, columns].
    """
    groups = rows[:, None] if quantization in PER_OUTPUT else _groups(rows)
    largest = top = np.abs(groups).max(-1, keepdims=True)
    if quantization in PER_OUTPUT:
        spread = np.float32(10) * np.abs(groups).mean(-1, keepdims=True)
        top = np.minimum(largest, np.maximum(spread, largest / 128))
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(largest > 2.0**-100, np.float32(127) / top, np.float32(0))
    return _flat(np.rint(groups * inverse) * (top / np.float32(127)), rows.shape[1])


def rounded_weights(weights: Floats, quantization: str) -> Floats:
    """What the formats make of a matrix. weights: [rows, columns]."""
    if quantization in PER_OUTPUT:
        scales = np.abs(weights).max(1, keepdims=True) / np.float32(127)
        numbers = np.rint(weights / scales) if quantization == "int8" else fitted_nibbles(weights / scales)
        return (numbers * scales).astype(np.float32)
    groups = _groups(weights)
    if quantization == "int8_group32":
        scales = (np.abs(groups).max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
        return _flat(np.clip(np.rint(groups / scales), -127, 127) * scales, weights.shape[1])
    inside = _groups(np.ones_like(weights)) > 0  # a short last group is rounded by its own numbers alone
    smallest = np.where(inside, groups, np.inf).min(-1, keepdims=True)
    largest = np.where(inside, groups, -np.inf).max(-1, keepdims=True)
    minima = smallest.astype(np.float16).astype(np.float32)
    scales = ((largest - smallest) / np.float32(15)).astype(np.float16).astype(np.float32)
    return _flat(np.clip(np.rint((groups - minima) / scales), 0, 15) * scales + minima, weights.shape[1])


def widened_nibbles(rows: int, columns: int, seed: int = 1) -> Floats:
    """Matrices of whole numbers that nibbles hold: step * code + base, with the least and the greatest code in every
    group, steps of every size, and in every row a number of magnitude 127.
    """
    rng = np.random.default_rng(seed)
    shape = (rows, -(-columns // GROUP), 1)
    steps = rng.integers(1, 17, shape)
    steps[:, 0] = 16
    bases = rng.integers(-127, 128 - 15 * steps)
    bases[:, 0] = -127
    codes = rng.integers(0, 16, (*shape[:2], GROUP))
    codes[:, :, 0], codes[:, :, 1] = 0, 15
    return _flat((steps * codes + bases).astype(np.float32), columns)


def fitted_nibbles(numbers: Floats) -> Floats:
    """What groups of numbers from -127 to 127 become as step * code + base: for each the least squared error of ten
    steps and bases. It is an error of numbers in parts of a 32nd.
    """
    columns = numbers.shape[1]
    parts = np.rint(_groups(np.pad(numbers, ((0, 0), (0, -columns % GROUP)), mode="edge")) * 32).astype(np.int64)
    smallest, largest = parts.min(-1, keepdims=True), parts.max(-1, keepdims=True)
    errors, results = [], []
    for longer in (0, 1):
        step = np.clip((largest - smallest) // (15 * 32) + longer, 1, 17)
        for beside in range(-2, 3):
            base = np.maximum((smallest + largest - 15 * 32 * step + 32 >> 6) + beside, -127)
            above = np.maximum(parts - 32 * base + 16 * step, 0)
            codes = np.minimum(above * ((1 << 14) // step + 1) >> 19, np.minimum(15, (127 - base) // step))
            results.append(step * codes + base)
            errors.append(((32 * results[-1] - parts) ** 2).sum(-1, keepdims=True))
    best = np.argmin(errors, 0)[None]
    return _flat(np.take_along_axis(np.array(results), best, 0)[0].astype(np.float32), columns)


def _groups(rows: Floats) -> Floats:
    columns = rows.shape[1]
    padded = np.pad(rows, ((0, 0), (0, -columns % GROUP)))
    return padded.reshape(len(rows), -1, GROUP)


def _flat(groups: Floats, columns: int) -> Floats:
    return np.ascontiguousarray(groups.reshape(len(groups), -1)[:, :columns], dtype=np.float32)


def blocks_of(weights: Floats, blocks: str) -> npt.NDArray[np.uint8]:
    data: npt.NDArray[np.uint8] = gguf.quants.quantize(weights, BLOCKS[blocks])
    return data


def dequantized(data: npt.NDArray[np.uint8], blocks: str) -> Floats:
    values: Floats = gguf.quants.dequantize(data, BLOCKS[blocks])
    return values


class HeadModel:
    """A model whose layer adds nothing, so that logits are one linear layer of a token's normalized embedding."""

    def __init__(self, hidden_size: int, vocab_size: int, seed: int = 0) -> None:
        self.config = ModelConfig.from_hf(
            {
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": vocab_size,
                "hidden_size": hidden_size,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "head_dim": 16,
                "max_position_embeddings": 512,
                "rms_norm_eps": 1e-5,
            }
        )
        rng = np.random.default_rng(seed)
        self.embeddings = rng.standard_normal((vocab_size, hidden_size), np.float32)
        self.embeddings *= np.exp(rng.standard_normal((vocab_size, hidden_size), np.float32))  # some are far larger
        self.norm = 1 + 0.1 * rng.standard_normal(hidden_size, np.float32)
        self.head = rng.standard_normal((vocab_size, hidden_size), np.float32)

    def native(
        self, quantization: str, isa: str = "auto", blocks: str = "", weight_format: str = "f32"
    ) -> postroad_native.Model:
        """With the head as `blocks` where these are named."""
        model = postroad_native.Model(
            model_fields(self.config),
            num_pages=20,
            page_size=PAGE_SIZE,
            threads=1,
            weight_format=weight_format,
            tensor_quantization={"lm_head.weight": quantization},
            isa=isa,
        )
        for name, array in self._layer().items():
            model.set_weight(name, array)
        model.set_weight("model.embed_tokens.weight", self.embeddings)
        model.set_weight("model.norm.weight", self.norm)
        if blocks:
            model.set_weight("lm_head.weight", blocks_of(self.head, blocks), blocks=blocks)
        else:
            model.set_weight("lm_head.weight", self.head)
        model.finish()
        return model

    def expected(self, token_ids: list[int], head: Floats, quantization: str) -> Floats:
        """Logits of tokens, with a head of these weights over activations that are rounded as for `quantization`."""
        rows = self.embeddings[token_ids]
        factors = 1 / np.sqrt((rows * rows).mean(-1, keepdims=True) + np.float32(1e-5))
        logits: Floats = rounded_activations((rows * factors * self.norm).astype(np.float32), quantization) @ head.T
        return logits

    def _layer(self) -> dict[str, Any]:
        hidden = self.config.hidden_size
        shapes = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (16, hidden),
            "self_attn.k_proj": (16, hidden),
            "self_attn.v_proj": (16, hidden),
            "self_attn.o_proj": (hidden, 16),
            "mlp.gate_proj": (16, hidden),
            "mlp.up_proj": (16, hidden),
            "mlp.down_proj": (hidden, 16),
        }
        return {f"model.layers.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
