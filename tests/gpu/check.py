"""`python -m tests.gpu.check`: the GPU path on a real GPU, in a few minutes, as a table.

Correctness against transformers; copies beside the computation; truncated sampling beside sorting; decodes and prefills
beside the bandwidth and the matrix products that are measured in the same run; the offline workload of mini-sglang with
random weights; graphs, overlap and fp8 on and off; two ranks, where there are two GPUs. Exits with status 1 where a
check failed, and 2 where there is no GPU.

`--device cpu` tries the check itself, in small and with stand-ins.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import torch

from services.engine.device import why_no_cuda
from tests.gpu import copies, correctness, ranks, sampling, speed, target
from tests.gpu.rows import Row, table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    on_cpu = parser.parse_args(arguments).device == "cpu"
    if not on_cpu and (reason := why_no_cuda()):
        print(f"no GPU, nothing was checked: {reason}")
        return 2
    started = time.perf_counter()
    if on_cpu:
        torch.set_num_threads(1)  # for small tensors more only wait for each other
    place = target.cpu() if on_cpu else target.gpu()
    print(f"{place.title}, Python {platform.python_version()}\n")
    rows = list(
        _shown(
            itertools.chain(
                place.missing,
                correctness.rows(place.variants, place.device, place.models),
                copies.rows(place.device, place.sizes),
                sampling.rows(place.variants, place.device, place.sizes),
                speed.rows(place.variants, place.device, place.sizes, place.fitted),
                ranks.rows(place.together, place.device, place.sizes),
            )
        )
    )
    print(f"\n{table(rows)}\n\n{time.perf_counter() - started:.0f} s")
    return 1 if any(row.passed is False for row in rows) else 0


def _shown(rows: Iterable[Row]) -> Iterator[Row]:
    """Each at once on standard error, so that an end before the table leaves what was found."""
    for row in rows:
        print(row, file=sys.stderr, flush=True)
        yield row


if __name__ == "__main__":
    sys.exit(main())
