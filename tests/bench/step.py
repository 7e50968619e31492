"""`python -m tests.bench.step`: the native executor's step alone, beside what this machine's memory and cores allow.

Models have random weights in the shapes of SmolLM2-135M and Qwen3-0.6B. Limits are measured in the same run, before and
after the model's steps: the bandwidth at which all threads read memory (numpy), and the rates of torch's bf16 and int8
matrix products. A decode step cannot be faster than its weights and its keys and values are read, nor a prefill than
its products are computed. Several formats are measured in turn, step by step, and compared with the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import postroad_native
import torch

from services.engine.models.config import ModelConfig
from services.engine.models.weights import weight_shapes
from tests.bench.limits import Memory, Work, best_seconds, seconds_of
from tests.bench.models import SHAPES
from tests.engine.native.stepping import Arguments, model_fields, plan

PAGE_SIZE = 16
CONTEXT = 256
PREFIX, LONGER = 512, 544  # tokens that decodes have in common, of how many each has
PREFILLS = (512, 1024)
BATCHES = (1, 8, 32)
PEAK_GOAL = 0.85  # of a bf16 prefill, in parts of the measured bf16 matrix rate
INT8_GOAL = 1.5  # of an int8 prefill, times the bf16 one
QUANTIZATIONS = ("none", "int8", "int4")  # "none" is bf16; a head is never int4, as in serving


@dataclass(frozen=True)
class Limits:
    bandwidth: float  # bytes per second that all threads read together
    flops: float  # bf16 floating point operations per second of all threads
    int8_ops: float

    def rate(self, quantization: str) -> float:
        return self.flops if quantization == "none" else self.int8_ops

    def seconds(self, work: Work, weight_bytes: int, quantization: str) -> float:
        return max((weight_bytes + work.kv_bytes) / self.bandwidth, work.flops / self.rate(quantization))

    @classmethod
    def best(cls, *measured: Limits) -> Limits:
        return cls(*(max(values) for values in zip(*map(astuple, measured), strict=True)))


class Machine:
    """Measures what memory and cores give at this moment."""

    def __init__(self, threads: int) -> None:
        self._memory = Memory(threads)
        torch.set_num_threads(threads)
        self._matrices = [torch.randn(2048, 2048).bfloat16() for _ in range(2)]
        self._integers = [torch.randint(-128, 128, (2048, 2048), dtype=torch.int8) for _ in range(2)]

    def limits(self) -> Limits:
        product = best_seconds(lambda: torch.mm(*self._matrices), repeats=5)
        integers = best_seconds(lambda: torch._int_mm(*self._integers), repeats=5)
        return Limits(self._memory.bandwidth(), 2 * 2048**3 / product, 2 * 2048**3 / integers)


def random_model(config: ModelConfig, threads: int, quantization: str, isa: str) -> postroad_native.Model:
    pages = max(BATCHES) * CONTEXT // PAGE_SIZE
    model = postroad_native.Model(
        model_fields(config),
        num_pages=pages,
        page_size=PAGE_SIZE,
        threads=threads,
        quantization=quantization,
        tensor_quantization={"model.embed_tokens.weight": "int8"} if quantization == "int4" else {},
        isa=isa,
    )
    noise = _bf16(0.02 * np.random.default_rng(0).standard_normal(1 << 22, dtype=np.float32))
    for name, shape in weight_shapes(config).items():
        model.set_weight(name, np.resize(noise, shape))
    model.finish()
    return model


def _bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def decode_arguments(batch: int) -> Arguments:
    pages = CONTEXT // PAGE_SIZE
    return Arguments.of([plan([7 + i], range(i * pages, (i + 1) * pages), CONTEXT - 1) for i in range(batch)])


def sharing_arguments(batch: int) -> Arguments:
    """Decodes of LONGER tokens whose first PREFIX ones lie in the same pages."""
    prefix, own = range(PREFIX // PAGE_SIZE), (LONGER - PREFIX) // PAGE_SIZE
    tables = [[*prefix, *range(len(prefix) + i * own, len(prefix) + (i + 1) * own)] for i in range(batch)]
    return Arguments.of([plan([7 + i], table, LONGER - 1) for i, table in enumerate(tables)])


def sharing_work(config: ModelConfig, batch: int) -> Work:
    """The keys and values of the prefix are read once."""
    prefix, apart = Work.of(config, 1, PREFIX, 1), Work.of(config, 1, LONGER - PREFIX, batch)
    return replace(Work.of(config, 1, LONGER, batch), kv_bytes=prefix.kv_bytes + apart.kv_bytes)


def prefill_arguments(tokens: int) -> Arguments:
    return Arguments.of([plan(range(tokens), range(tokens // PAGE_SIZE))])


def print_prefill_goals(seconds: dict[str, float], work: Work, limits: Limits) -> None:
    """`seconds` of a prefill, by quantization."""
    if "none" not in seconds:
        return
    bf16 = seconds["none"]
    text = f"bf16 at {work.flops / bf16 / limits.flops:.0%} of the measured matrix rate (goal {PEAK_GOAL:.0%})"
    if "int8" in seconds:
        text += f", int8 {bf16 / seconds['int8']:.2f} times as fast (goal {INT8_GOAL})"
    print(f"    {text}")


def measure(shape: str, machine: Machine, options: argparse.Namespace) -> None:
    config = ModelConfig.from_hf(SHAPES[shape])
    models = {name: random_model(config, options.threads, name, options.isa) for name in options.quantization}
    isa = next(iter(models.values())).isa
    print(f"\n{shape}, {isa}, {options.threads} threads")
    cases = [
        (f"decode, batch {batch}", decode_arguments(batch), Work.of(config, 1, CONTEXT, batch)) for batch in BATCHES
    ]
    batch = max(BATCHES)
    cases.append((f"{batch} share {PREFIX}", sharing_arguments(batch), sharing_work(config, batch)))
    cases += [
        (f"prefill of {tokens}", prefill_arguments(tokens), Work.of(config, tokens, tokens, 1)) for tokens in PREFILLS
    ]
    for case, arguments, work in cases:
        before = machine.limits()
        times = interleaved_seconds(
            [partial(model.step, **vars(arguments)) for model in models.values()],
            options.repeats,
        )
        limits = Limits.best(before, machine.limits())
        for (name, model), seconds in zip(models.items(), times, strict=True):
            limit = limits.seconds(work, model.weight_bytes, name)
            print(
                f"  {case:16} {name:5} {seconds * 1e3:8.2f} ms ({times[0] / seconds:4.2f}x)"
                f"   limit {limit * 1e3:7.2f} ms ({limit / seconds:4.0%})"
                f"   {(model.weight_bytes + work.kv_bytes) / seconds / 1e9:6.1f} of {limits.bandwidth / 1e9:5.1f} GB/s"
                f"   {work.flops / seconds / 1e9:6.0f} of {limits.rate(name) / 1e9:5.0f} GOP/s"
            )
        if case.startswith("prefill"):
            print_prefill_goals(dict(zip(models, times, strict=True)), work, limits)


def interleaved_seconds(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """The median of each call's times, taken in turn: what disturbs the machine disturbs all of them."""
    rounds = [[seconds_of(call, 1)[0] for call in calls] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.step", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quantization", choices=QUANTIZATIONS, action="append", help="default: all")
    parser.add_argument("--isa", choices=("auto", *postroad_native.supported_isas()), default="auto")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    options.quantization = options.quantization or QUANTIZATIONS
    machine = Machine(options.threads)
    for shape in options.shape or SHAPES:
        measure(shape, machine, options)


if __name__ == "__main__":
    main()
