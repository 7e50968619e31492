"""Two ranks of one model, each on a GPU of its own, over NCCL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

import torch

from services.engine.executor.model_runner import ModelRunner
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.torch_follower import TorchFollower
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_model, load_shard
from services.engine.plan import SamplingJob, SamplingParams, SequencePlan, StepPlan
from services.engine.ranks.errors import GroupLost
from services.engine.ranks.group import RankGroup, open_store, reach_store
from services.engine.ranks.process_groups import NcclMeeting
from tests.engine.executor.plans import GREEDY
from tests.engine.models.reference import FAMILIES
from tests.engine.ranks.nccl_on_cpu import NcclOnCpu
from tests.gpu.rows import Row
from tests.gpu.speed import PAGE_SIZE, Sizes
from tests.gpu.variants import variants_on

SIZE = 2
LOOPBACK = "127.0.0.1"
MODEL = FAMILIES["qwen3"] | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}
NUM_DECODES = 3
NUM_STEPS = 8  # that are compared, after the prompts'
LOST_SECONDS = 1.0  # that a step may take where a rank is lost
FORM_SECONDS = 60.0
T = TypeVar("T")


class Together(Protocol):
    """Runs `work` on every rank of a new group; the results in order of rank."""

    def __call__(self, work: Callable[[RankGroup], T], step_seconds: float) -> list[T]: ...


def on_gpus(work: Callable[[RankGroup], T], step_seconds: float) -> list[T]:
    """Each rank is a process."""
    store, _ = open_store(LOOPBACK, FORM_SECONDS)
    run = partial(_on_gpu, work=work, port=store.port, seconds=step_seconds)
    with ProcessPoolExecutor(SIZE, mp_context=get_context("spawn")) as processes:
        return list(processes.map(run, range(SIZE)))


def _on_gpu(rank: int, *, work: Callable[[RankGroup], T], port: int, seconds: float) -> T:
    torch.cuda.set_device(rank)
    group = RankGroup(rank, SIZE, seconds, FORM_SECONDS, meeting=NcclMeeting(), device_type="cuda")
    group.form(reach_store(LOOPBACK, port, FORM_SECONDS), LOOPBACK)
    return work(group)


def as_threads(work: Callable[[RankGroup], T], step_seconds: float) -> list[T]:
    """On the CPU, by a stand-in for NCCL."""
    from tests.engine.ranks.thread_ranks import together  # noqa: PLC0415

    return together(SIZE, work, timeout=step_seconds, meeting=NcclMeeting(NcclOnCpu()))


def rows(together: Together | None, device: str, sizes: Sizes) -> Iterator[Row]:
    """`together` is None where there are too few GPUs."""
    if together is None:
        yield Row(f"{SIZE} ranks over NCCL", "skipped, as there is one GPU")
        return
    for name, dtype, needed in (("torch", "float32", 1.0), ("flashinfer, graphs", "bfloat16", 0.9)):
        if name not in variants_on(device):
            continue
        one = _Work(name, dtype, device, MODEL)
        tokens = together(one.greedy, FORM_SECONDS)[0]
        expected = one.greedy(None)
        share = sum(a == b for a, b in zip(tokens, expected, strict=True)) / len(tokens)
        what = f"{SIZE} ranks, {dtype}, {name}: greedy tokens as of one rank"
        yield Row(what, f"{share:.0%} of {len(tokens)}", passed=share >= needed)
    for name in ("flashinfer", "flashinfer, graphs"):
        if name in variants_on(device):
            timed = partial(_Work(name, "bfloat16", device, sizes.model).decode_seconds, sizes=sizes)
            ranks, alone = together(timed, FORM_SECONDS)[0], timed(None)
            what = f"{SIZE} ranks, {name}: decode of {sizes.batches[-1]} after {sizes.context} tokens"
            yield Row(what, f"{ranks * 1e3:.2f} ms", f"one rank: {alone * 1e3:.2f} ms")
    seconds = together(partial(_seconds_until_lost, device=device), LOST_SECONDS)[0]
    yield Row(
        f"a rank that does not come, given up after {LOST_SECONDS:g} s",
        f"{seconds:.1f} s",
        passed=LOST_SECONDS <= seconds < LOST_SECONDS + 4,
    )


@dataclass(frozen=True)
class _Work:
    """What a rank does, or a process that has the whole model to itself. It goes to other processes."""

    variant: str
    dtype: str
    device: str
    model: dict[str, Any]

    def greedy(self, group: RankGroup | None) -> list[int]:
        """Tokens of sequences that are given what follows, whatever is sampled. Of ranks, rank 0 has them."""
        tokens: list[int] = []
        executor = self._executor(group, NUM_DECODES * 4, NUM_DECODES)
        prompt, step = 20, [0]
        for number in range(NUM_STEPS + 1):
            length, start = (prompt, 0) if number == 0 else (1, prompt + number - 1)
            plans = [
                SequencePlan(
                    i,
                    [(7 * i + 3 * p) % 97 for p in range(start, start + length)],
                    start,
                    list(range(4 * i, 4 * i + 4)),
                    [SamplingJob(GREEDY, step, [])],
                )
                for i in range(NUM_DECODES)
            ]
            result = executor.execute(StepPlan(number, plans))
            if isinstance(executor, TorchExecutor):
                tokens += [token for i in range(NUM_DECODES) for token in result.token_ids[i]]  # type: ignore[union-attr]
        self._end(executor, group)
        return tokens

    def decode_seconds(self, group: RankGroup | None, sizes: Sizes) -> float:
        """The median of a step of decodes."""
        batch, pages = sizes.batches[-1], sizes.context // PAGE_SIZE + 1
        executor = self._executor(group, batch * pages, batch)
        job = SamplingJob(SamplingParams(temperature=0.6), [0], [])
        sequences = [
            SequencePlan(i, [i % 97], sizes.context, list(range(i * pages, (i + 1) * pages)), [job])
            for i in range(batch)
        ]
        times = []
        for number in range(sizes.repeats + 2):
            started = time.perf_counter()
            executor.execute(StepPlan(number, sequences))
            if self.device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        self._end(executor, group)
        return sorted(times[2:])[len(times[2:]) // 2]

    def _executor(self, group: RankGroup | None, num_pages: int, batch: int) -> TorchExecutor | TorchFollower:
        config, variant = ModelConfig.from_hf(self.model), variants_on(self.device)[self.variant]
        dtype, weights = getattr(torch, self.dtype), random_weights(config, seed=0)
        if group is None:
            return variant.executor(load_model(config, weights, dtype, self.device), num_pages, PAGE_SIZE, batch)
        model = load_shard(Shard.of(config, group.rank, SIZE), weights, dtype, self.device, group)
        options = replace(variant.options(batch), collectives=group)
        runner = ModelRunner(variant.model(model), num_pages, PAGE_SIZE, options=options)
        executor = TorchExecutor(runner) if group.rank == 0 else TorchFollower(runner)
        executor.record_graphs((batch,) if options.graphs is not None else ())
        return executor

    @staticmethod
    def _end(executor: TorchExecutor | TorchFollower, group: RankGroup | None) -> None:
        executor.drop_graphs()
        executor.close()
        if group is not None:
            group.leave()


def _seconds_until_lost(group: RankGroup, device: str) -> float:
    """From a step's begin to the error, at rank 0; the other one does not come."""
    if group.rank != 0:
        time.sleep(3 * LOST_SECONDS if device == "cuda" else 0)  # a process that ends is another case
        return 0.0
    started = time.perf_counter()
    try:
        step = group.begin_step()
        float(group.sum(torch.ones(1, device=device)))
        step.end()
        group.require_whole()
    except GroupLost:
        group.leave()
        return time.perf_counter() - started
    raise AssertionError("a sum with nobody")
