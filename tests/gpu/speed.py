"""Steps of one model beside the device's own limits, and the offline workload of mini-sglang."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from services.engine.core import EngineCore, StepReport
from services.engine.executor.base import Executor
from services.engine.executor.kv_pool import kv_bytes_per_page
from services.engine.executor.overlapped_executor import OverlappedExecutor
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.weights import load_model
from services.engine.plan import SamplingJob, SamplingParams, SequencePlan, StepPlan, StopParams
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.scheduler.sequence import Sequence
from tests.bench.models import QWEN3
from tests.gpu.rows import Row
from tests.gpu.variants import Variant

PAGE_SIZE = 16


@dataclass(frozen=True)
class Sizes:
    """What is measured. Tokens, unless the name says otherwise."""

    model: dict[str, Any]
    copy_bytes: int
    matrix: int  # rows and columns
    batches: tuple[int, ...]  # sequences
    context: int
    prefill: int
    repeats: int
    requests: int  # of the workload
    shortest: int  # prompt, and output, of the workload
    longest: int
    max_num_seqs: int
    max_batch_tokens: int


# 256 sequences of 100 to 1024 tokens in and out: mini-sglang's offline benchmark.
FULL = Sizes(QWEN3, 1 << 30, 8192, (1, 32, 128, 256), 1024, 4096, 20, 256, 100, 1024, 256, 8192)

MakeExecutor = Callable[[Decoder, Variant], TorchExecutor]  # with a KV pool that suits the workload


def rows(variants: Mapping[str, Variant], device: str, sizes: Sizes, make_executor: MakeExecutor) -> Iterator[Row]:
    bandwidth, flops = _bandwidth(device, sizes), _flops(device, sizes)
    yield Row("bandwidth, copying", f"{bandwidth / 1e9:.0f} GB/s")
    yield Row("matrix products, bfloat16", f"{flops / 1e12:.1f} TFLOP/s")
    config = ModelConfig.from_hf(sizes.model)
    model = load_model(config, random_weights(config, seed=0), torch.bfloat16, device)
    for name, variant in variants.items():
        for batch in () if variant.overlaps else sizes.batches:  # a step alone overlaps with nothing
            seconds = _decode_seconds(model, variant, batch, sizes)
            part = _decode_bytes(config, variant, batch, sizes.context) / seconds / bandwidth
            what = f"{name}: decode of {batch} after {sizes.context} tokens"
            yield Row(what, f"{seconds * 1e3:.2f} ms", f"{part:.0%} of the bandwidth")
        if variant.make_recorder is None:  # prefills are never recorded
            seconds = _prefill_seconds(model, variant, sizes)
            part = _prefill_flops(config, sizes.prefill) / seconds / flops
            yield Row(f"{name}: prefill of {sizes.prefill}", f"{seconds * 1e3:.1f} ms", f"{part:.0%} of the products")
        executor = make_executor(model, variant)
        yield workload(name, OverlappedExecutor(executor) if variant.overlaps else executor, sizes)
        executor.close()


def workload(name: str, executor: Executor, sizes: Sizes) -> Row:
    """All requests at once, through the engine's loop, until the last one has ended."""
    rng = random.Random(0)
    scheduler = Scheduler(SchedulerConfig(sizes.max_batch_tokens, sizes.max_num_seqs), executor.info)
    core = EngineCore(scheduler, executor)
    lengths = [
        (rng.randint(sizes.shortest, sizes.longest), rng.randint(sizes.shortest, sizes.longest))
        for _ in range(sizes.requests)
    ]
    for number, (prompt, output) in enumerate(lengths):
        prompt_ids = [rng.randrange(executor.info.vocab_size) for _ in range(prompt)]
        sampling = SamplingParams(temperature=0.6, seed=number)
        core.add(Sequence(number, prompt_ids, sampling, StopParams(output), arrival_ns=0))
    num_tokens = 0

    def count(report: StepReport) -> None:
        nonlocal num_tokens
        num_tokens += sum(len(output.token_ids) for output in report.outputs)
        if report.error is not None or not scheduler.has_work:
            core.stop()

    started = time.perf_counter()
    core.run(count)
    seconds = time.perf_counter() - started
    complete = num_tokens == sum(output for _, output in lengths)
    what = f"{name}: {sizes.requests} requests of {sizes.shortest} to {sizes.longest} tokens in and out"
    return Row(what, f"{num_tokens / seconds:.0f} tok/s", f"{num_tokens} tokens in {seconds:.1f} s", complete)


def median_seconds(run: Callable[[], object], device: str, repeats: int) -> float:
    """The median of `repeats` runs, after two that do not count."""
    times = []
    for _ in range(repeats + 2):
        _synchronize(device)
        started = time.perf_counter()
        run()
        _synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _bandwidth(device: str, sizes: Sizes) -> float:
    """Bytes per second, read and written."""
    source = torch.zeros(sizes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * sizes.copy_bytes / median_seconds(lambda: target.copy_(source), device, sizes.repeats)


def _flops(device: str, sizes: Sizes) -> float:
    a = torch.ones(sizes.matrix, sizes.matrix, dtype=torch.bfloat16, device=device)
    return 2 * sizes.matrix**3 / median_seconds(lambda: a @ a, device, sizes.repeats)


def _decode_seconds(model: Decoder, variant: Variant, batch: int, sizes: Sizes) -> float:
    pages = sizes.context // PAGE_SIZE + 1
    executor = variant.executor(model, batch * pages, PAGE_SIZE, batch)
    job = SamplingJob(SamplingParams(temperature=0.6), [0], [])
    sequences = [
        SequencePlan(i, [i], sizes.context, list(range(i * pages, (i + 1) * pages)), [job]) for i in range(batch)
    ]
    return _timed(executor, sequences, model, sizes)


def _prefill_seconds(model: Decoder, variant: Variant, sizes: Sizes) -> float:
    pages = -(-sizes.prefill // PAGE_SIZE)
    executor = variant.executor(model, pages, PAGE_SIZE, 1)
    job = SamplingJob(SamplingParams(temperature=0.6), [0], [])
    return _timed(executor, [SequencePlan(0, [1] * sizes.prefill, 0, list(range(pages)), [job])], model, sizes)


def _timed(executor: TorchExecutor, sequences: list[SequencePlan], model: Decoder, sizes: Sizes) -> float:
    seconds = median_seconds(lambda: executor.execute(StepPlan(1, sequences)), model.device.type, sizes.repeats)
    executor.close()
    return seconds


def _decode_bytes(config: ModelConfig, variant: Variant, batch: int, context: int) -> int:
    """Weights once, and the keys and values of all sequences. The untied table of embeddings is hardly read."""
    table = config.vocab_size * config.hidden_size
    in_layers = config.num_weights - table * (1 if config.tie_word_embeddings else 2)
    weights = 2 * table + in_layers * (1 if variant.fp8 else 2)
    return weights + batch * context * kv_bytes_per_page(config, variant.kv_dtype or torch.bfloat16, 1)


def _prefill_flops(config: ModelConfig, tokens: int) -> int:
    """Products with weights, but for the head, of which one row is computed; and attention, half of it masked."""
    tables = 1 if config.tie_word_embeddings else 2
    weights = config.num_weights - tables * config.vocab_size * config.hidden_size
    return 2 * weights * tokens + 2 * config.num_layers * config.q_size * tokens**2
