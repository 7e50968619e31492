"""Small models on the device against transformers in float32 on the CPU: prefill chunks, decodes, shared pages."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.fp8 import not_multiples
from services.engine.models.weights import load_model
from tests.engine.executor.plans import Sequence
from tests.engine.models.reference import FAMILIES, Oracle
from tests.gpu.rows import Row
from tests.gpu.variants import TORCH, TORCH_FP8, Stepper, Variant

PAGE_SIZE = 16
NUM_PAGES = 64
NUM_STEPS = 5  # after the prompts'
NUM_CHUNKS = 3  # of the third one's prompt, in as many of these steps
# Heads of sizes for which flashinfer has kernels; groups with and without tensor cores; a window; caps.
MODELS: dict[str, dict[str, Any]] = {
    "llama, 9 heads, 3 KV heads": FAMILIES["llama, 9 heads, 3 KV heads"],
    "qwen3, 8 heads, 2 KV heads": FAMILIES["qwen3"]
    | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128},
    "mistral, window": FAMILIES["mistral, window"] | {"head_dim": 64},
    "gemma2": FAMILIES["gemma2"] | {"head_dim": 64, "query_pre_attn_scalar": 64},
}


def rows(variants: Mapping[str, Variant], device: str, models: Mapping[str, dict[str, Any]]) -> Iterator[Row]:
    """float32 by the reference must give transformers' tokens; in bfloat16 and in fp8 a variant may be off by what the
    reference is, and half as much again."""
    for name, config in models.items():
        expected = _expected(Oracle.of(config))
        found = _found(_model(config, torch.float32, device), TORCH)
        equal = bool((found.argmax(-1) == expected.argmax(-1)).all())
        off = f"logits off by {_off(found, expected):.1e}"
        yield Row(f"{name}: float32, tokens as transformers", off, passed=equal and _off(found, expected) < 1e-3)
        model = _model(config, torch.bfloat16, device)
        reference = _off(_found(model, TORCH), expected)
        yield Row(f"{name}: bfloat16, torch", f"logits off by {reference:.1e}", passed=reference < 0.1)
        in_fp8 = None if not_multiples(model.config) else _off(_found(model, TORCH_FP8), expected)
        if in_fp8 is not None:
            beside, passed = f"torch: {reference:.1e}", in_fp8 < 16 * reference + 1e-3  # e4m3 has four bits less
            yield Row(f"{name}: fp8, torch", f"logits off by {in_fp8:.1e}", beside, passed)
        for variant_name, variant in variants.items():
            limit = in_fp8 if variant.fp8 else reference
            if variant in (TORCH, TORCH_FP8) or variant.overlaps or limit is None:
                continue  # overlapped steps are the same ones
            off = _off(_found(model, variant), expected)
            dtype = "fp8" if variant.fp8 else "bfloat16"
            beside, passed = f"torch: {limit:.1e}", off < 1.5 * limit + 1e-3
            yield Row(f"{name}: {dtype}, {variant_name}", f"logits off by {off:.1e}", beside, passed)


def _model(config: dict[str, Any], dtype: torch.dtype, device: str) -> Decoder:
    parsed = ModelConfig.from_hf(config)
    return load_model(parsed, random_weights(parsed, seed=0), dtype, device)


def _sequences() -> list[Sequence]:
    """Two that share the pages of a prefix, and one that comes later, with the outputs that they will be given."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(97) for _ in range(count)]

    pages, prefix = rng.sample(range(NUM_PAGES), NUM_PAGES), tokens(2 * PAGE_SIZE)
    return [
        Sequence(0, prefix + tokens(51), pages[:8], output=tokens(NUM_STEPS)),
        Sequence(1, prefix + tokens(9), pages[:2] + pages[8:14], computed=len(prefix), output=tokens(NUM_STEPS)),
        Sequence(2, tokens(NUM_CHUNKS * 33), pages[14:24]),
    ]


def _expected(oracle: Oracle) -> Tensor:
    """[rows, vocab_size], float32: of each sequence those from its prompt's last token on."""
    return torch.cat([oracle.logits(s.prompt + s.output)[len(s.prompt) - 1 :] for s in _sequences()])


def _found(model: Decoder, variant: Variant) -> Tensor:
    """Likewise: two prompts in one step, their decodes beside the chunks of a third, and steps of decodes alone."""
    stepper = Stepper(model, variant, NUM_PAGES, PAGE_SIZE, largest=3)
    sequences = _sequences()
    *decoding, late = sequences
    outputs = [s.output for s in sequences]
    logits: list[list[Tensor]] = [[] for _ in sequences]
    for number in range(NUM_STEPS + 1):
        for sequence, output in zip(sequences, outputs, strict=True):
            sequence.output = output[:number]
        plans = [sequence.plan() for sequence in decoding]
        if 0 < number <= NUM_CHUNKS:
            plans.insert(0, late.plan(len(late.prompt) // NUM_CHUNKS))
        for plan in plans:
            sequences[plan.sequence_id].computed += len(plan.token_ids)
        for sequence_id, row in stepper.logits(plans).items():
            logits[sequence_id].append(row.float().cpu())
    return torch.stack([row for of_one in logits for row in of_one])


def _off(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, as a part of the norm of what is expected."""
    return float((found - expected).norm() / expected.norm())
