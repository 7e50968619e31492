"""Whether a step's numbers reach the device while it computes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from services.engine.executor.cuda_queues import CudaQueue
from services.engine.executor.transfers import Mark
from services.engine.executor.uploads import Queues, Uploads
from tests.engine.executor.queues_on_cpu import EagerComputation, LateCopies
from tests.gpu.rows import Row
from tests.gpu.speed import Sizes

NUM_PRODUCTS = 50
NUM_NUMBERS = 10_000


def rows(device_type: str, sizes: Sizes) -> Iterator[Row]:
    """Behind many matrix products; a CPU, which has no queues, only tries the check."""
    device, queues = torch.device(device_type), Queues(EagerComputation(), LateCopies())
    if device_type == "cuda":
        queues = Queues(CudaQueue(device), CudaQueue(device, torch.cuda.Stream()))  # type: ignore[no-untyped-call]
    uploads = Uploads(device, queues)
    numbers = list(range(NUM_NUMBERS))
    for _ in range(2):
        with uploads.step():  # takes the memory
            uploads(numbers, torch.int64)
    matrix = torch.ones(sizes.matrix, sizes.matrix, dtype=torch.bfloat16, device=device)
    Mark(device).wait()
    started = time.perf_counter()
    with uploads.step():
        for _ in range(NUM_PRODUCTS):
            matrix @ matrix
        computed = Mark(device)
        tensor = uploads(numbers, torch.int64)
        queues.copies.mark().wait()
        copied, is_computing = time.perf_counter() - started, not computed.is_reached()
        is_right = tensor.tolist() == numbers  # waits for the products
    seconds = time.perf_counter() - started
    yield Row(
        f"copy of {NUM_NUMBERS} numbers beside the computation",
        f"done after {copied * 1e3:.1f} ms",
        f"the computation: after {seconds * 1e3:.1f} ms",
        passed=is_right and (is_computing or device_type == "cpu"),
    )
