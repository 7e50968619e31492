"""What a CUDA device's start decides, on a model that is on the CPU and a memory with given figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import structlog
import torch
from structlog.testing import capture_logs

from services.engine.cuda_startup import (
    choose_attention,
    choose_graphs,
    find_flashinfer,
    fitted_executor,
    fitting_pages,
    lacks_fp8,
    with_fused_ops,
)
from services.engine.errors import StartupError
from services.engine.executor.attention import TorchAttention
from services.engine.executor.decode_graphs import GraphOptions
from services.engine.executor.flashinfer_attention import FlashInfer, FlashInferAttention
from services.engine.executor.flashinfer_ops import FlashInferOps
from services.engine.executor.kv_pool import kv_bytes_per_page
from services.engine.executor.model_runner import MakeAttention, ModelRunner, RunnerOptions
from services.engine.executor.profile_steps import ProfileSteps
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.sharding import Shard
from services.engine.models.weights import load_shard
from services.engine.ranks.group import RankGroup
from services.engine.settings import EngineSettings
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.plans import Sequence, decode
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.models.reference import FAMILIES, Oracle, decoder

LLAMA = FAMILIES["llama"]
COVERED = FAMILIES["llama, 9 heads, 3 KV heads"]  # in bfloat16: its heads are of 64
TORCH = RunnerOptions()
SETTINGS = EngineSettings(max_batch_tokens=32, max_num_seqs=4, page_size=4, max_model_len=64)


@dataclass
class Memory:
    """A device of 1,000,000 bytes, of which 900,000 are free. `peak` is that of the step, beside its KV pool."""

    step: int
    runs: list[str] = field(default_factory=list)

    def total(self) -> int:
        return 1_000_000

    def free(self) -> int:
        self.runs.append("free")
        return 900_000

    def peak(self, run: Callable[[], None]) -> int:
        run()
        self.runs.append("steps")
        return self.step


def _pool_bytes(model: Decoder) -> tuple[int, int]:
    """Of a page, and of the profiling step's pool."""
    page = kv_bytes_per_page(model.config, model.dtype, 4)
    most_tokens = 32 + SETTINGS.max_finishing_tokens
    return page, page * ProfileSteps.of(most_tokens, 4, 64, 4).num_pages


def test_the_kv_pool_takes_what_the_step_and_the_share_for_others_leave() -> None:
    model = decoder(LLAMA)
    page, pool = _pool_bytes(model)
    memory = Memory(step=50_000 + pool)
    executor = fitted_executor(SETTINGS, model, TORCH, memory)
    assert executor.info.num_pages == (900_000 - 50_000 - 100_000) // page
    assert memory.runs == ["steps", "free"]  # what the step leaves behind does not count as free
    sequence = Sequence(1, [3, 1, 4, 1, 5], list(range(4)))
    decode(executor, sequence, num_steps=3)
    assert sequence.output == Oracle.of(LLAMA).greedy(sequence.prompt, 3)


@pytest.mark.parametrize(
    ("flags", "pages"), [({"num_pages": 7}, 7), ({"kv_cache_memory": 3 * 4 * 2 * 2 * 12 * 4 * 5 + 1}, 5)]
)
def test_a_pool_of_a_given_size_is_taken_as_it_is_after_the_step_ran(flags: dict[str, int], pages: int) -> None:
    memory = Memory(step=10**9)
    executor = fitted_executor(SETTINGS.model_copy(update=flags), decoder(LLAMA), TORCH, memory)
    assert executor.info.num_pages == pages
    assert memory.runs[0] == "steps"


@pytest.mark.parametrize(("flag", "name"), [("num_pages", "num-pages 1000000"), ("kv_cache_memory", "kv-cache-memory")])
def test_a_pool_larger_than_what_is_free_on_the_device_is_refused_by_name(flag: str, name: str) -> None:
    settings = SETTINGS.model_copy(update={flag: 1_000_000})  # pages or bytes; 900,000 bytes are free
    with pytest.raises(StartupError, match=rf"^{name}: a KV pool of .* GiB is more than the 0.0 GiB of memory that"):
        fitted_executor(settings, decoder(LLAMA), TORCH, Memory(step=0))
    page, _ = _pool_bytes(decoder(LLAMA))
    fitting = SETTINGS.model_copy(update={"num_pages": 900_000 // page})
    assert fitted_executor(fitting, decoder(LLAMA), TORCH, Memory(step=10**9)).info.num_pages == 900_000 // page


def test_no_room_for_a_page_is_refused() -> None:
    with pytest.raises(StartupError, match="do not hold one page"):
        fitted_executor(SETTINGS, decoder(LLAMA), TORCH, Memory(step=10**9))


def test_kernels_that_do_not_run_end_the_start_and_name_the_way_out() -> None:
    def broken(*_: object) -> TorchAttention:
        raise RuntimeError("no kernel image is available")

    with pytest.raises(StartupError, match="no kernel image is available; attention torch"):
        fitted_executor(SETTINGS, decoder(LLAMA), RunnerOptions(broken), Memory(step=0))


def _chosen(
    model: Decoder, attention: str = "auto", find: Callable[[], FlashInfer] = FlashInferOnCpu
) -> tuple[str, str]:
    """The name and the reason that are logged."""
    settings = SETTINGS.model_copy(update={"attention": attention})
    with capture_logs() as logs:
        make = choose_attention(settings, model, structlog.get_logger(), find)
    [line] = logs
    assert (make is TorchAttention) == (line["attention"] == "torch")
    return line["attention"], line["reason"]


def test_flashinfer_is_taken_where_it_covers_the_model() -> None:
    model = decoder(COVERED, dtype=torch.bfloat16)
    assert _chosen(model)[0] == "flashinfer"
    assert _chosen(model, "flashinfer")[0] == "flashinfer"
    assert _chosen(model, "torch") == ("torch", "it is asked for")


def test_the_reference_takes_its_place_and_the_log_says_why() -> None:
    assert _chosen(decoder(LLAMA, dtype=torch.bfloat16)) == (
        "torch",
        "flashinfer has no kernels for heads of 12, only of 64, 128, 256",
    )
    assert "not in float32" in _chosen(decoder(COVERED))[1]
    with pytest.raises(StartupError, match=r"attention flashinfer cannot be had: .* not in float32"):
        _chosen(decoder(COVERED), "flashinfer")


def test_without_the_package_the_reference_is_taken() -> None:
    def missing() -> FlashInfer:
        raise ImportError("No module named 'flashinfer'")

    model = decoder(COVERED, dtype=torch.bfloat16)
    assert _chosen(model, find=missing) == ("torch", "flashinfer is not installed (No module named 'flashinfer')")
    with pytest.raises(StartupError, match="is not installed"):
        _chosen(model, "flashinfer", missing)


def test_the_package_is_not_in_the_environments_for_cpus() -> None:
    with pytest.raises(ImportError):
        find_flashinfer()


def _graphs(make: MakeAttention, **flags: int) -> tuple[int, ...]:
    """The sizes that are chosen, which are logged, too."""
    with capture_logs() as logs:
        settings = SETTINGS.model_copy(update=flags)
        options = choose_graphs(settings, make, RecorderOnCpu, structlog.get_logger())
    [line] = logs
    sizes = () if options is None else options.sizes
    assert line["sizes"] == list(sizes)
    return sizes


def test_graphs_hold_as_many_decodes_as_may_run() -> None:
    flashinfer = partial(FlashInferAttention, library=FlashInferOnCpu())
    assert _graphs(flashinfer) == (1, 2, 4)
    assert _graphs(flashinfer, max_num_seqs=1000)[-2:] == (248, 256)
    assert _graphs(flashinfer, max_num_seqs=1000, max_graph_batch=300)[-2:] == (296, 300)
    assert _graphs(flashinfer, max_graph_batch=3) == (1, 2, 3)
    assert _graphs(flashinfer, max_graph_batch=90) == (1, 2, 4)
    assert _graphs(flashinfer, max_graph_batch=0) == ()


def test_the_reference_has_no_graphs_and_they_are_refused_where_they_are_asked_for() -> None:
    assert _graphs(TorchAttention) == ()
    with pytest.raises(StartupError, match="max-graph-batch 3 cannot be had: attention is torch"):
        _graphs(TorchAttention, max_graph_batch=3)


def test_graphs_are_among_what_is_profiled() -> None:
    model, recorders = decoder(LLAMA), [RecorderOnCpu(), RecorderOnCpu()]
    unused = list(recorders)
    options = GraphOptions(lambda: unused.pop(0), (1, 2))
    page, pool = _pool_bytes(model)
    executor = fitted_executor(SETTINGS, model, RunnerOptions(graphs=options), Memory(step=pool + 70_000))
    assert executor.info.num_pages == (900_000 - 70_000 - 100_000) // page
    assert all(recorder.log[:2] == ["warm up 2", "record 2"] for recorder in recorders)
    decode(executor, Sequence(1, [3, 1, 4], list(range(4))), num_steps=2)
    assert [recorder.log[-1] for recorder in recorders] == ["record 1", "replay 1"]


@pytest.mark.parametrize(
    ("dtype", "capability", "reason"),
    [
        (torch.bfloat16, (9, 0), ""),
        (torch.bfloat16, (8, 9), ""),
        (torch.bfloat16, (8, 6), "compute capability is 8.6, and it needs 8.9"),
        (torch.float32, (9, 0), "dtype is float32"),
    ],
)
def test_what_a_device_lacks_for_fp8(dtype: torch.dtype, capability: tuple[int, int], reason: str) -> None:
    asked = SETTINGS.model_copy(update={"quantization": "fp8"})
    found = lacks_fp8(asked, dtype, capability)
    assert bool(found) == bool(reason)
    assert reason in found
    assert lacks_fp8(SETTINGS, dtype, capability) == ""


def test_a_pool_of_8_bits_holds_twice_the_pages() -> None:
    model = decoder(LLAMA, dtype=torch.bfloat16)
    executors = [
        fitted_executor(SETTINGS, model, RunnerOptions(kv_dtype=dtype), Memory(step=0))
        for dtype in (torch.bfloat16, torch.float8_e4m3fn)
    ]
    plain, small = (executor.info.num_pages for executor in executors)
    assert small == 2 * plain


def test_the_whole_way_with_flashinfer_s_calls() -> None:
    plain = decoder(COVERED, dtype=torch.bfloat16)
    model = with_fused_ops(SETTINGS, plain, FlashInferOnCpu())
    assert isinstance(model.ops, FlashInferOps)
    chosen = choose_attention(SETTINGS, model, structlog.get_logger(), FlashInferOnCpu)
    make = partial(chosen, workspace_bytes=64)  # the stand-in needs none
    with_it = fitted_executor(
        SETTINGS.model_copy(update={"num_pages": 8, "max_model_len": 24}), model, RunnerOptions(make), Memory(step=0)
    )
    reference = TorchExecutor(ModelRunner(plain, 8, 4))
    outputs = []
    for executor in (with_it, reference):
        sequence = Sequence(1, [3, 1, 4, 1, 5, 9, 2, 6], list(range(5)))
        decode(executor, sequence, num_steps=4)
        outputs.append(sequence.output)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_profiled_alone_graphs_included(rank: int) -> None:
    config = ModelConfig.from_hf(COVERED)
    shard, group = Shard.of(config, rank, 2), RankGroup(rank, 2, timeout=1.0, form_timeout=1.0)
    model = load_shard(shard, random_weights(config, 0), torch.bfloat16, "cpu", group)
    recorder = RecorderOnCpu()
    attention = partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=64)
    options = RunnerOptions(attention, GraphOptions(lambda: recorder, (1, 2)), collectives=group)
    settings = SETTINGS.model_copy(update={"tensor_parallel_size": 2, "rank": rank})
    page, pool = _pool_bytes(model)
    assert page * config.num_kv_heads == kv_bytes_per_page(config, model.dtype, 4) * len(shard.kv_heads)
    with group.rehearsal():
        pages = fitting_pages(settings, model, options, Memory(step=pool + 70_000))
    assert pages == (900_000 - 70_000 - 100_000) // page
    assert recorder.log == ["warm up 2", "record 2", "warm up 1", "record 1"]
