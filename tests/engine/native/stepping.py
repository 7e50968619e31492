"""Native models of small random weights, and steps over plans that a test lays out itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import postroad_native
import torch

from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.projections import separated
from services.engine.native_startup import model_fields
from services.engine.plan import SequencePlan

PAGE_SIZE = 16
Logits = npt.NDArray[np.float32]


def native_model(
    hf_config: dict[str, Any],
    *,
    weight_format: str = "f32",
    kv_format: str = "auto",
    quantization: str = "none",
    isa: str = "auto",
    threads: int = 1,
    num_pages: int = 64,
    page_size: int = PAGE_SIZE,
    seed: int = 0,
) -> postroad_native.Model:
    """A finished model with the weights of `tests.engine.models.reference.decoder(hf_config, seed)`."""
    config = ModelConfig.from_hf(hf_config)
    model = postroad_native.Model(
        model_fields(config),
        num_pages=num_pages,
        page_size=page_size,
        threads=threads,
        weight_format=weight_format,
        kv_format=kv_format,
        quantization=quantization,
        isa=isa,
    )
    for name, tensor in random_weights(config, seed):
        for part, rows in separated(config, name, tensor.numpy()):
            model.set_weight(part, rows)
    model.finish()
    return model


@dataclass
class Arguments:
    """What `Model.step` takes, to be spoilt one by one."""

    token_ids: list[int]
    positions: list[int]
    sequence_offsets: list[int]
    context_lengths: list[int]
    page_table: list[int]
    page_table_offsets: list[int]
    logit_rows: list[int]

    @classmethod
    def of(cls, plans: Sequence[SequencePlan], logit_rows: Sequence[int] | None = None) -> Arguments:
        """Logits of each sequence's last token, unless rows are given."""
        ends = list(accumulate(len(plan.token_ids) for plan in plans))
        return cls(
            token_ids=[token_id for plan in plans for token_id in plan.token_ids],
            positions=[plan.start + i for plan in plans for i in range(len(plan.token_ids))],
            sequence_offsets=[0, *ends],
            context_lengths=[plan.start + len(plan.token_ids) for plan in plans],
            page_table=[page for plan in plans for page in plan.page_table],
            page_table_offsets=[0, *accumulate(len(plan.page_table) for plan in plans)],
            logit_rows=[end - 1 for end in ends] if logit_rows is None else list(logit_rows),
        )


def step(model: postroad_native.Model, *plans: SequencePlan, logit_rows: Sequence[int] | None = None) -> Logits:
    """A copy of one step's logits: [sequences, vocab_size], or those of the rows that are asked for."""
    return run(model, Arguments.of(plans, logit_rows))


def run(model: postroad_native.Model, arguments: Arguments) -> Logits:
    return np.array(model.step(**vars(arguments)))


def plan(token_ids: Sequence[int], page_table: Sequence[int], start: int = 0) -> SequencePlan:
    return SequencePlan(0, list(token_ids), start, list(page_table), [])


def prompt(seed: int, length: int, vocab_size: int = 97) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(vocab_size, (length,), generator=generator).tolist()
    return tokens
