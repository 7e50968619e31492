"""The ways of running steps that are compared with one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from services.engine.cuda_startup import FP8_CAPABILITY, FlashInferPackage, find_flashinfer
from services.engine.executor.attention import TorchAttention
from services.engine.executor.batch import StepBatch
from services.engine.executor.cuda_graphs import CudaRecorder
from services.engine.executor.decode_graphs import DecodeGraphs, GraphOptions, Recorder, graph_sizes
from services.engine.executor.flashinfer_attention import WORKSPACE_BYTES, FlashInferAttention
from services.engine.executor.flashinfer_ops import FlashInferOps
from services.engine.executor.flashinfer_truncation import FlashInferTruncation
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.model_runner import MakeAttention, ModelRunner, RunnerOptions
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.executor.truncation import draw_truncated
from services.engine.executor.uploads import Uploads
from services.engine.models.decoder import Decoder
from services.engine.models.fp8 import E4M3, with_fp8_matrices
from services.engine.plan import SequencePlan
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu


@dataclass(frozen=True)
class Variant:
    """`make_recorder`: for graphs, if decodes are to be recorded; `overlaps`: whether steps are launched ahead;
    `fp8`: whether matrices are in e4m3."""

    make_attention: MakeAttention
    make_recorder: Callable[[], Recorder] | None = None
    overlaps: bool = False
    fp8: bool = False
    kv_dtype: torch.dtype | None = None  # the model's, if None
    kernels: FlashInferPackage | None = None  # for what is between matrix products, and for sampling

    def in_fp8(self) -> Variant:
        return replace(self, fp8=True, kv_dtype=E4M3)

    def model(self, model: Decoder) -> Decoder:
        """As the variant has it."""
        if self.fp8:
            model = with_fp8_matrices(model, model.device)
        if self.kernels is None:
            return model
        return replace(model, ops=FlashInferOps(self.kernels, model.ropes, model.config.max_position_embeddings))

    def graphs(self, largest: int) -> GraphOptions | None:
        """For steps of up to `largest` decodes."""
        return None if self.make_recorder is None else GraphOptions(self.make_recorder, graph_sizes(largest))

    def options(self, batch: int) -> RunnerOptions:
        """Of graphs there is one: for `batch` decodes."""
        graphs = None if self.make_recorder is None else GraphOptions(self.make_recorder, (batch,))
        return self._options(graphs)

    def fitted_options(self, largest: int) -> RunnerOptions:
        """With graphs for up to `largest` decodes."""
        return self._options(self.graphs(largest))

    def _options(self, graphs: GraphOptions | None) -> RunnerOptions:
        draw = draw_truncated if self.kernels is None else FlashInferTruncation(self.kernels).draw
        return RunnerOptions(self.make_attention, graphs, self.kv_dtype, draw_truncated=draw)

    def executor(self, model: Decoder, num_pages: int, page_size: int, batch: int) -> TorchExecutor:
        """With `options`."""
        return TorchExecutor(ModelRunner(self.model(model), num_pages, page_size, options=self.options(batch)))


TORCH = Variant(TorchAttention)
TORCH_FP8 = TORCH.in_fp8()


def variants_on(device: str) -> dict[str, Variant]:
    """By name. On a CPU, cpu, flashinfer and graphs are stand-ins; on cuda it is torch alone without flashinfer."""
    if device == "cpu":
        return _all(FlashInferOnCpu(), 64, RecorderOnCpu, has_fp8=True)
    try:
        library = find_flashinfer()
    except ImportError:
        return {"torch": TORCH}
    return _all(library, WORKSPACE_BYTES, CudaRecorder, has_fp8=torch.cuda.get_device_capability() >= FP8_CAPABILITY)


def _all(
    library: FlashInferPackage, workspace_bytes: int, recorder: Callable[[], Recorder], *, has_fp8: bool
) -> dict[str, Variant]:
    attention = partial(FlashInferAttention, library=library, workspace_bytes=workspace_bytes)
    plain = Variant(attention, kernels=library)
    graphs = replace(plain, make_recorder=recorder)
    variants = {
        "torch": TORCH,
        "flashinfer": plain,
        "flashinfer, graphs": graphs,
        "flashinfer, graphs, overlap": replace(graphs, overlaps=True),
    }
    return variants | ({"flashinfer, graphs, fp8": graphs.in_fp8()} if has_fp8 else {})


class Stepper:
    """Steps of a variant as far as their logits."""

    def __init__(self, model: Decoder, variant: Variant, num_pages: int, page_size: int, largest: int) -> None:
        self._model = variant.model(model)
        self._pool = KvPool(
            model.config, num_pages + 1, page_size, model.dtype, model.device, stored_dtype=variant.kv_dtype
        )
        self._attention = variant.make_attention(self._pool, model.config)
        self._uploads = Uploads(model.device)
        options = variant.graphs(largest)
        self._graphs = (
            None
            if options is None
            else DecodeGraphs(
                self._model,
                self._pool,
                self._attention,
                options,
                uploads=self._uploads,
                pages_per_sequence=num_pages,
                scratch_page=num_pages,
            )
        )

    def logits(self, plans: Sequence[SequencePlan]) -> dict[int, Tensor]:
        """Of every sequence that samples, by id."""
        graph = self._graphs.holding(plans) if self._graphs is not None else None
        with torch.inference_mode():
            batch = StepBatch.build(
                plans if graph is None else graph.padded(plans), self._pool.page_size, self._uploads
            )
            if graph is not None:
                graph.fill(batch)
                states = graph.hidden_states()
            else:
                attend = self._attention.prepare(batch)
                states = self._model.hidden_states(batch.token_ids, batch.positions, attend)
            return dict(zip(batch.sampled_ids, self._model.logits(states[batch.sampled_rows]), strict=True))
