"""flashinfer's backend against the reference, with a stand-in for its kernels: they need a GPU."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
import torch

from services.engine.executor.attention import AttentionBackend, TorchAttention
from services.engine.executor.batch import StepBatch
from services.engine.executor.flashinfer_attention import FlashInferAttention, not_covered
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.model_runner import ModelRunner, RunnerOptions
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.uploads import Uploads
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.plan import SequencePlan
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.plans import Sequence, decode, step
from tests.engine.models.reference import FAMILIES, Oracle, decoder

PAGE_SIZE = 4
WORKSPACE = 64


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(97) for _ in range(length)]


def _hidden_states(
    model: Decoder, pool: KvPool, attention: AttentionBackend, plans: list[SequencePlan]
) -> torch.Tensor:
    with torch.inference_mode():
        batch = StepBatch.build(plans, pool.page_size, Uploads(model.device))
        return model.hidden_states(batch.token_ids, batch.positions, attention.prepare(batch))


@pytest.mark.parametrize(
    "family",
    ["llama, 9 heads, 3 KV heads", "mistral, window", "mistral, window of one", "gemma2", "gemma3", "smollm3, window"],
)
def test_mixed_steps_equal_the_reference(family: str) -> None:
    """Chunks beside decodes, a prefix that is shared within one step, and lengths around page and window limits."""
    model = decoder(FAMILIES[family])
    pools = [KvPool(model.config, 64, PAGE_SIZE, torch.float32, model.device) for _ in range(2)]
    backends: list[AttentionBackend] = [
        TorchAttention(pools[0], model.config),
        FlashInferAttention(pools[1], model.config, FlashInferOnCpu(), WORKSPACE),
    ]
    pages = random.Random(1).sample(range(64), 64)
    prefix = _prompt(0, 8)
    first = Sequence(1, prefix + _prompt(1, 15), pages[:8])
    sharing = Sequence(2, prefix + _prompt(2, 3), pages[:2] + pages[8:16], computed=8)
    late = Sequence(3, _prompt(3, 40), pages[16:30])
    short = Sequence(4, _prompt(4, 4), pages[30:34])
    steps = [
        [(first, None), (sharing, None)],
        [(short, None), (late, 17), (first, None)],
        [(first, None), (late, 22), (sharing, None), (short, None)],
        [(late, 1), (short, None), (first, None), (sharing, None)],
        [(first, None), (sharing, None), (late, None), (short, None)],
    ]
    for parts in steps:
        plans = [sequence.plan(count) for sequence, count in parts]
        expected, got = (
            _hidden_states(model, pool, backend, plans) for pool, backend in zip(pools, backends, strict=True)
        )
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
        for (sequence, _), plan in zip(parts, plans, strict=True):
            sequence.computed += len(plan.token_ids)
            if plan.sampling:
                sequence.output.append(len(sequence.output) + 5)


def test_an_executor_with_it_gives_the_tokens_of_transformers() -> None:
    family = FAMILIES["qwen3"]
    make = partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=WORKSPACE)
    runner = ModelRunner(decoder(family), num_pages=32, page_size=PAGE_SIZE, options=RunnerOptions(make))
    executor = TorchExecutor(runner)
    one, other = Sequence(1, _prompt(5, 21), list(range(9))), Sequence(2, _prompt(6, 11), list(range(9, 16)))
    step(executor, (one, 10))
    step(executor, (one, None), (other, None))
    decode(executor, one, other, num_steps=4)
    oracle = Oracle.of(family)
    assert one.output == oracle.greedy(one.prompt, 5)
    assert other.output == oracle.greedy(other.prompt, 5)


def test_a_step_is_planned_once_for_each_window() -> None:
    model, library = decoder(FAMILIES["gemma2"]), FlashInferOnCpu()
    pool = KvPool(model.config, 16, PAGE_SIZE, torch.float32, model.device)
    attention = FlashInferAttention(pool, model.config, library, WORKSPACE)
    assert len(library.made) == 4  # two windows, decode and prefill
    sequence = Sequence(1, _prompt(7, 9), list(range(4)))
    _hidden_states(model, pool, attention, [sequence.plan()])
    assert sorted(wrapper.num_plans for wrapper in library.made) == [0, 0, 1, 1]


@pytest.mark.parametrize(("heads", "tensor_cores"), [((4, 4), False), ((9, 3), False), ((8, 2), True), ((10, 2), True)])
def test_tensor_cores_decode_where_many_heads_share_a_kv_head(heads: tuple[int, int], tensor_cores: bool) -> None:
    model, library = decoder(FAMILIES["llama"]), FlashInferOnCpu()
    config = replace(model.config, num_heads=heads[0], num_kv_heads=heads[1])
    FlashInferAttention(KvPool(config, 1, PAGE_SIZE, torch.float32, model.device), config, library, WORKSPACE)
    [use] = [wrapper.use_tensor_cores for wrapper in library.made if hasattr(wrapper, "use_tensor_cores")]
    assert use == tensor_cores


def test_what_it_does_not_cover_is_named() -> None:
    config = ModelConfig.from_hf(FAMILIES["llama"])
    assert "heads of 12" in not_covered(config, torch.bfloat16)
    covered = replace(config, head_dim=128)
    assert "not in float32" in not_covered(covered, torch.float32)
    assert not_covered(covered, torch.bfloat16) == ""
