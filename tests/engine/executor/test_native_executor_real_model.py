"""The native executor with the default model's weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer

pytest.importorskip("postroad_native")

from services.engine.executor.base import Executor
from services.engine.executor.native_executor import NativeExecutor
from services.engine.loading.files import ModelFiles, read_model_files
from services.engine.loading.source import resolve
from services.engine.native_startup import load_native_executor
from services.engine.plan import SamplingParams
from services.engine.settings import EngineSettings
from services.engine.torch_startup import load_torch_executor
from tests.engine.executor.plans import Sequence, decode

TEXTS = [
    "The capital of France is",
    "def add(a, b):\n    return",
    "<|im_start|>user\nWrite one sentence about horses.<|im_end|>\n<|im_start|>assistant\n",
]
PAGES = 4  # per sequence


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return read_model_files(resolve("default"))


@pytest.fixture(scope="module")
def prompts(files: ModelFiles) -> list[list[int]]:
    tokenizer = Tokenizer.from_buffer(files.tokenizer_files["tokenizer.json"])
    return [tokenizer.encode(text).ids for text in TEXTS]


def _settings(dtype: str) -> EngineSettings:
    return EngineSettings(dtype=dtype, threads=1, num_pages=33 * PAGES)


@pytest.fixture(scope="module")
def bfloat16(files: ModelFiles) -> Iterator[NativeExecutor]:
    executor = load_native_executor(_settings("bfloat16"), resolve("default"), files)
    yield executor
    executor.close()


def _sequences(prompts: list[list[int]], params: list[SamplingParams]) -> list[Sequence]:
    """As many as there are params, each with pages of its own."""
    return [
        Sequence(i, prompts[i % len(prompts)], list(range(i * PAGES, (i + 1) * PAGES)), p) for i, p in enumerate(params)
    ]


def _run(executor: Executor, sequences: list[Sequence], num_tokens: int) -> list[list[int]]:
    decode(executor, *sequences, num_steps=num_tokens)
    return [sequence.output for sequence in sequences]


@pytest.mark.slow
def test_greedy_tokens_in_float32_equal_those_of_torch(files: ModelFiles, prompts: list[list[int]]) -> None:
    settings, source = _settings("float32"), resolve("default")
    outputs = []
    for load in (load_native_executor, load_torch_executor):
        executor: Executor = load(settings, source, files)
        greedy = [SamplingParams(temperature=0.0)] * len(prompts)
        outputs.append(_run(executor, _sequences(prompts, greedy), 16))
        executor.close()
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("count", [7, 32])
def test_seeded_sequences_in_bfloat16_get_the_same_tokens_alone_and_in_a_batch(
    bfloat16: NativeExecutor, prompts: list[list[int]], count: int
) -> None:
    params = [SamplingParams(seed=i, top_p=0.95 if i % 2 else 1.0) for i in range(count)]
    together = _run(bfloat16, _sequences(prompts, params), 8)
    for index in (0, 1, 2, count - 1):
        alone = Sequence(0, prompts[index % len(prompts)], list(range(32 * PAGES, 33 * PAGES)), params[index])
        assert _run(bfloat16, [alone], 8) == [together[index]]
    assert len({tuple(output) for output in together}) > count - 2, "drawn, not greedy"
