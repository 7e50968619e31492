"""Settings → weights on a CUDA device → a profiling step → a KV pool of what is then free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from structlog.typing import FilteringBoundLogger

from services.engine import resources
from services.engine.device import device_index
from services.engine.errors import StartupError
from services.engine.executor.attention import TorchAttention
from services.engine.executor.cuda_graphs import CudaRecorder
from services.engine.executor.cuda_memory import CudaMemory, DeviceMemory
from services.engine.executor.decode_graphs import GraphOptions, Recorder, graph_sizes
from services.engine.executor.flashinfer_attention import FlashInfer, FlashInferAttention, not_covered
from services.engine.executor.flashinfer_ops import FlashInferKernels, FlashInferOps
from services.engine.executor.flashinfer_truncation import FlashInferFilters, FlashInferTruncation
from services.engine.executor.kv_pool import kv_bytes_per_page
from services.engine.executor.model_runner import MakeAttention, ModelRunner, RunnerOptions
from services.engine.executor.overlapped_executor import OverlappedExecutor
from services.engine.executor.profile_steps import ProfileSteps
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.torch_follower import TorchFollower
from services.engine.executor.truncation import DrawTruncated, draw_truncated
from services.engine.loading.files import ModelFiles
from services.engine.loading.source import ModelSource
from services.engine.models.decoder import Decoder
from services.engine.models.parallel import Collectives
from services.engine.settings import EngineSettings
from services.engine.torch_startup import kv_dtype, load_decoder, torch_dtype

FP8_CAPABILITY = (8, 9)  # from which devices multiply e4m3
MOST_GRAPH_ROWS = 256  # by default: beyond, a step's own work outlasts the launch of its kernels


class FlashInferPackage(FlashInfer, FlashInferKernels, FlashInferFilters, Protocol):
    """What is used of it altogether."""


Find = Callable[[], FlashInferPackage]


def load_cuda_executor(
    settings: EngineSettings, source: ModelSource, files: ModelFiles, log: FilteringBoundLogger
) -> TorchExecutor | OverlappedExecutor:
    """Raises LoadingError, ModelError, and StartupError if not a single page fits or the attention does not run."""
    model, options = load_on_cuda(settings, source, files, log)
    executor = fitted_executor(settings, model, options, CudaMemory())
    return OverlappedExecutor(executor) if settings.overlap else executor


def load_on_cuda(
    settings: EngineSettings,
    source: ModelSource,
    files: ModelFiles,
    log: FilteringBoundLogger,
    *,
    collectives: Collectives | None = None,
) -> tuple[Decoder, RunnerOptions]:
    """The model or, with `collectives`, a rank's part of it on the rank's device, which becomes torch's current one;
    and how it is run. Raises LoadingError, ModelError or StartupError."""
    index = device_index(settings, torch.cuda.device_count())
    torch.cuda.set_device(index)
    log.info("device chosen", device=f"cuda:{index}", name=torch.cuda.get_device_name())
    dtype = torch_dtype(settings, "cuda")
    if reason := lacks_fp8(settings, dtype, torch.cuda.get_device_capability()):
        raise StartupError(reason)
    model = load_decoder(settings, source, files, dtype, "cuda", collectives=collectives)
    make_attention = choose_attention(settings, model, log)
    draw: DrawTruncated = draw_truncated
    if make_attention is not TorchAttention:
        library = find_flashinfer()
        model = with_fused_ops(settings, model, library)
        draw = FlashInferTruncation(library).draw
    graphs = choose_graphs(settings, make_attention, CudaRecorder, log)
    if collectives is not None and graphs is None:
        graphs = GraphOptions(CudaRecorder, ())  # rank 0 says which there are
    return model, RunnerOptions(make_attention, graphs, kv_dtype(settings, dtype), collectives, draw)


def lacks_fp8(settings: EngineSettings, dtype: torch.dtype, capability: tuple[int, int]) -> str:
    """Why a device of this compute capability has no matrices in fp8 beside others of `dtype`; empty if it has, or if
    they are not asked for."""
    if settings.quantization != "fp8":
        return ""
    if dtype != torch.bfloat16:
        return "quantization fp8 cannot be had: its products are in bfloat16, and dtype is float32"
    if capability < FP8_CAPABILITY:
        found, needed = (".".join(map(str, version)) for version in (capability, FP8_CAPABILITY))
        return f"quantization fp8 cannot be had: the device's compute capability is {found}, and it needs {needed}"
    return ""


def find_flashinfer() -> FlashInferPackage:
    """Raises ImportError."""
    import flashinfer  # noqa: PLC0415

    library: FlashInferPackage = flashinfer
    return library


def choose_attention(
    settings: EngineSettings, model: Decoder, log: FilteringBoundLogger, find: Find = find_flashinfer
) -> MakeAttention:
    """flashinfer where it can be, else the reference, with a log line that says why. Raises StartupError."""
    if settings.attention == "torch":
        log.info("attention chosen", attention="torch", reason="it is asked for")
        return TorchAttention
    reason = not_covered(model.config, model.dtype)
    if not reason:
        try:
            library = find()
        except ImportError as error:
            reason = f"flashinfer is not installed ({error})"
        else:
            log.info("attention chosen", attention="flashinfer", reason="it covers the model")
            return partial(FlashInferAttention, library=library)
    if settings.attention == "flashinfer":
        raise StartupError(f"attention flashinfer cannot be had: {reason}")
    log.warning("attention chosen", attention="torch", reason=reason)
    return TorchAttention


def with_fused_ops(settings: EngineSettings, model: Decoder, kernels: FlashInferKernels) -> Decoder:
    """Where flashinfer computes attention it computes what is between the matrix products, too."""
    return replace(model, ops=FlashInferOps(kernels, model.ropes, _longest(settings, model)))


def _longest(settings: EngineSettings, model: Decoder) -> int:
    """Tokens of the longest sequence that may be served."""
    return min(settings.max_model_len or model.config.max_position_embeddings, model.config.max_position_embeddings)


def choose_graphs(
    settings: EngineSettings,
    make_attention: MakeAttention,
    make_recorder: Callable[[], Recorder],
    log: FilteringBoundLogger,
) -> GraphOptions | None:
    """Graphs of decodes with flashinfer. The reference's would read as many pages of each sequence as the longest has.

    Raises StartupError where the settings want graphs that cannot be had.
    """
    largest = settings.max_graph_batch
    if make_attention is TorchAttention:
        if largest:
            raise StartupError(f"max-graph-batch {largest} cannot be had: attention is torch")
        largest = 0
    elif largest is None:
        largest = min(settings.max_num_seqs, MOST_GRAPH_ROWS)
    if largest == 0:
        log.info("graphs chosen", sizes=[])
        return None
    sizes = graph_sizes(min(largest, settings.max_num_seqs))
    log.info("graphs chosen", sizes=list(sizes))
    return GraphOptions(make_recorder, sizes)


def fitted_executor(
    settings: EngineSettings, model: Decoder, options: RunnerOptions, memory: DeviceMemory
) -> TorchExecutor:
    """With `fitting_pages`."""
    num_pages = fitting_pages(settings, model, options, memory)
    return TorchExecutor(ModelRunner(model, num_pages, settings.page_size, settings.max_model_len, options))


def fitting_pages(settings: EngineSettings, model: Decoder, options: RunnerOptions, memory: DeviceMemory) -> int:
    """The pages that the settings say or, by default, as many as fit beside what steps and graphs take.

    The profiling step runs in any case: whatever is compiled at first use is compiled before the first request. A rank
    runs it alone, while its group rehearses. Raises StartupError.
    """
    page_bytes = kv_bytes_per_page(model.config, options.kv_dtype or model.dtype, settings.page_size)
    longest = _longest(settings, model)
    most_tokens = settings.max_batch_tokens + settings.max_finishing_tokens
    steps = ProfileSteps.of(most_tokens, settings.max_num_seqs, longest, settings.page_size)
    try:
        taken = memory.peak(partial(_run, steps, settings, model, options))
    except Exception as error:  # of whatever kind: kernels are compiled and loaded here
        hint = "" if options.make_attention is TorchAttention else "; attention torch does without flashinfer's kernels"
        raise StartupError(f"the profiling step failed: {error}{hint}") from error
    free = memory.free()
    asked_for = resources.asked_pages(settings, page_bytes, free, "the {} of memory that are free on the device")
    if asked_for is not None:
        return asked_for
    step_bytes = max(0, taken - steps.num_pages * page_bytes)
    spared = int(memory.total() * (1.0 - settings.gpu_memory_utilization))
    return resources.whole_pages(max(0, free - step_bytes - spared), page_bytes)


def _run(steps: ProfileSteps, settings: EngineSettings, model: Decoder, options: RunnerOptions) -> None:
    runner = ModelRunner(model, steps.num_pages, settings.page_size, options=options)
    executor = TorchExecutor(runner) if settings.rank == 0 else TorchFollower(runner)
    if options.collectives is not None and options.graphs is not None:
        executor.record_graphs(options.graphs.sizes)
    for plan in steps.plans:
        executor.execute(plan)
    executor.close()
