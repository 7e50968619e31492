"""Numbers reach a device in time, and stay as long as they are read, in whatever order its queues work."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from services.engine.executor.cuda_queues import uploads_to
from services.engine.executor.model_runner import ModelRunner, RunnerOptions
from services.engine.executor.overlapped_executor import OverlappedExecutor
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.uploads import Queues, Uploads
from tests.engine.executor.queues_on_cpu import DeviceOnCpu, EagerComputation, Impatient, LateCopies
from tests.engine.executor.serving import requests, served
from tests.engine.models.reference import FAMILIES, decoder

CPU = torch.device("cpu")
NUM_STEPS = 12


def _steps(device: DeviceOnCpu, seed: int, *, reads_results: bool) -> bool:
    """Whether steps compute with what they uploaded, before their first operation and after it."""
    rng, uploads = random.Random(seed), Uploads(CPU, device.queues)
    are_right, ends = [], []

    def compute(tensor: Tensor, expected: Tensor) -> None:
        device.computation.add(lambda: are_right.append(torch.equal(tensor, expected)))
        device.work_a_while()

    for _ in range(NUM_STEPS):
        with uploads.step():
            ints, floats = [rng.randrange(1000) for _ in range(rng.randrange(5))], [rng.random() for _ in range(3)]
            compute(uploads(ints, torch.int64), torch.tensor(ints, dtype=torch.int64))
            compute(uploads([floats, floats], torch.float64), torch.tensor([floats, floats], dtype=torch.float64))
            late = torch.full((rng.choice((1, 80_000)),), rng.random())  # so many fit no chunk
            compute(uploads.put(late), late)
        ends.append(device.computation.mark())
        if reads_results and len(ends) > 1:
            ends[-2].require()
    device.finish()
    assert len(are_right) == 3 * NUM_STEPS
    return all(are_right)


@pytest.mark.parametrize("reads_results", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_each_step_reads_its_own_numbers(seed: int, reads_results: bool) -> None:
    """With the result of the step before read, as the engine does, and with steps launched as fast as the CPU can."""
    assert _steps(DeviceOnCpu(seed), seed, reads_results=reads_results)


@pytest.mark.parametrize("impatient", ["the computation", "the copies", "the CPU"])
def test_no_wait_can_be_left_out(impatient: Impatient) -> None:
    assert not all(_steps(DeviceOnCpu(seed, impatient), seed, reads_results=False) for seed in range(8))


def test_new_memory_is_written_when_the_computation_is_there() -> None:
    """It may be memory that was freed while what uses it was still to run."""
    device = DeviceOnCpu(0)
    uploads, ran = Uploads(CPU, device.queues), []
    device.computation.add(lambda: ran.append("the computation before"))
    with uploads.step():
        tensor = uploads([7], torch.int64)
        device.copies.add(lambda: ran.append("the copy"))
        for _ in range(10):
            device.copies.step()
        assert ran == []
    device.finish()
    assert (ran, tensor.tolist()) == (["the computation before", "the copy"], [7])


def test_an_upload_belongs_to_a_step() -> None:
    uploads = Uploads(CPU, DeviceOnCpu(0).queues)
    with pytest.raises(AssertionError, match="no step"):
        uploads([1], torch.int64)


def test_without_queues_it_is_there_at_once_and_the_callers() -> None:
    uploads, source = uploads_to(CPU), torch.tensor([1, 2])
    tensor = uploads.put(source)
    source[0] = 9
    with uploads.step():
        assert uploads([], torch.int32).tolist() == []
    assert tensor.tolist() == [1, 2]


def test_the_executor_reads_nothing_before_it_is_there() -> None:
    """All kinds of sampling, log-probabilities, steps ahead; copies are late, and nonsense is where they will be."""
    model = decoder(FAMILIES["llama, 9 heads, 3 KV heads"])
    expected = served(TorchExecutor(ModelRunner(model, 24, 4)), requests())
    options = RunnerOptions(make_uploads=lambda device: Uploads(device, Queues(EagerComputation(), LateCopies())))
    found = served(OverlappedExecutor(TorchExecutor(ModelRunner(model, 24, 4, options=options))), requests())
    assert found[0] == expected[0]
