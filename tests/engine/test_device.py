"""Where the model is computed, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from services.engine.device import choose_device, chosen_dtype, device_index, why_no_cuda
from services.engine.errors import StartupError
from services.engine.settings import EngineSettings

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a CUDA device")


def test_without_a_device_auto_is_the_cpu(tmp_path: Path) -> None:
    assert choose_device(EngineSettings(), tmp_path) == "cpu"
    assert choose_device(EngineSettings(device="cpu"), tmp_path) == "cpu"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"device": "cuda"}, "device cuda"),
        ({"attention": "flashinfer"}, "attention flashinfer"),
        ({"max_graph_batch": 8}, "max-graph-batch 8"),
    ],
)
def test_a_device_that_is_not_there_is_refused_by_name(tmp_path: Path, settings: dict[str, object], named: str) -> None:
    with pytest.raises(StartupError, match=f"{named} cannot be had: there is no GPU here.*nvidiactl is missing"):
        choose_device(EngineSettings(**settings), tmp_path)  # type: ignore[arg-type]


@needs_no_gpu
def test_a_torch_that_finds_no_device_is_named(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert torch.__version__ in why_no_cuda(tmp_path)
    assert choose_device(EngineSettings(), tmp_path) == "cpu"
    with pytest.raises(StartupError, match=r"torch .* finds no CUDA device"):
        choose_device(EngineSettings(device="cuda"), tmp_path)


@pytest.mark.parametrize(
    "settings", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}, {"executor": "native"}, {"device": "cpu"}]
)
def test_auto_stays_on_the_cpu_for_what_only_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device(EngineSettings(), tmp_path) == "cuda"
    assert choose_device(EngineSettings(**settings), tmp_path) == "cpu"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cuda", "executor": "native"}, "device cuda needs the torch executor, not native"),
        ({"attention": "flashinfer", "executor": "scripted"}, "attention flashinfer needs the torch executor"),
        (
            {"device": "cuda", "quantization": "int4"},
            "quantization int4 needs the native executor, and device cuda the torch executor",
        ),
        ({"device": "cuda", "kv_cache_dtype": "int8"}, "kv-cache-dtype int8 needs the native executor"),
        ({"device": "cpu", "attention": "flashinfer"}, "attention flashinfer needs a CUDA device, and device is cpu"),
        ({"device": "cpu", "max_graph_batch": 8}, "max-graph-batch 8 needs a CUDA device, and device is cpu"),
        ({"executor": "native", "max_graph_batch": 8}, "max-graph-batch 8 needs the torch executor, not native"),
        ({"attention": "torch", "max_graph_batch": 8}, "max-graph-batch 8 needs attention flashinfer, not torch"),
        ({"gpu_memory_utilization": 1.5}, "less than or equal to 1"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings", [{"device": "cuda"}, {"quantization": "fp8"}, {"attention": "flashinfer"}, {"max_graph_batch": 8}]
)
def test_ranks_have_what_one_rank_has_on_cuda(settings: dict[str, object]) -> None:
    assert EngineSettings(tensor_parallel_size=2, **settings).needs_torch  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "visible", "index"),
    [
        ({"rank": 0}, 1, 0),
        ({"rank": 3}, 1, 0),  # a container with a device of its own
        ({"rank": 0}, 4, 0),
        ({"rank": 3}, 4, 3),
        ({"rank": 3, "local_ranks": 2}, 2, 1),  # two machines of two
        ({"rank": 3, "local_ranks": 1}, 2, 0),  # four machines
    ],
)
def test_each_rank_has_a_device_of_its_own(ranks: dict[str, int], visible: int, index: int) -> None:
    assert device_index(_ranks(**ranks), visible) == index


def test_a_rank_without_a_device_says_so() -> None:
    with pytest.raises(StartupError, match=r"rank 3 needs CUDA device 3, as 4 ranks share .* there are 2 devices"):
        device_index(_ranks(rank=3), 2)


def _ranks(**settings: int) -> EngineSettings:
    return EngineSettings(tensor_parallel_size=4, leader="a:1" if settings["rank"] else "", **settings)  # type: ignore[arg-type]


def test_the_type_is_the_device_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported, dtype in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported: supported)
        assert chosen_dtype(EngineSettings(), "cuda") == dtype
        assert chosen_dtype(EngineSettings(dtype="float32"), "cuda") == "float32"
