"""A model and its KV pool: a step's tokens as far as their hidden states. What comes of these is the executor's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.engine.executor.attention import AttentionBackend, TorchAttention
from services.engine.executor.base import ExecutorInfo
from services.engine.executor.batch import StepBatch
from services.engine.executor.cuda_queues import uploads_to
from services.engine.executor.decode_graphs import DecodeGraphs, GraphOptions
from services.engine.executor.kv_pool import DEFAULT_PAGE_SIZE, KvPool
from services.engine.executor.transfers import Mark
from services.engine.executor.truncation import DrawTruncated, draw_truncated
from services.engine.executor.uploads import Uploads
from services.engine.models.config import ModelConfig
from services.engine.models.decoder import Decoder
from services.engine.models.parallel import Collectives
from services.engine.plan import SequencePlan

MakeAttention = Callable[[KvPool, ModelConfig], AttentionBackend]
FillIn = Callable[[StepBatch], None]  # puts tokens where a batch has pending ones


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How steps are computed: what a device's start decides."""

    make_attention: MakeAttention = TorchAttention
    graphs: GraphOptions | None = None  # of decodes, if there are to be any
    kv_dtype: torch.dtype | None = None  # the model's dtype, which None stands for, or e4m3
    collectives: Collectives | None = None  # of a model that is divided among ranks
    draw_truncated: DrawTruncated = draw_truncated  # used by whoever samples
    make_uploads: Callable[[torch.device], Uploads] = uploads_to


PLAIN = RunnerOptions()  # a whole model, kernel by kernel, by torch's own


class ModelRunner:
    """Used by one thread. Float32 and bfloat16, whichever the model is in, or e4m3, as far as that goes.

    A divided model's graphs hold the collectives of one group of ranks: they are recorded when the ranks are together
    (`record_graphs`), and dropped before the group is left. Those of a whole model are recorded at once.
    """

    def __init__(
        self,
        model: Decoder,
        num_pages: int,
        page_size: int = DEFAULT_PAGE_SIZE,
        max_model_len: int | None = None,
        options: RunnerOptions = PLAIN,
    ) -> None:
        """Takes `kv_bytes_per_page(model.config, kv_dtype, page_size)` times `num_pages` of memory for the KV pool, and
        one page more where steps are to run as recorded graphs.

        `max_model_len` (tokens) only lowers what the model's config and the pool allow.
        """
        config = model.config
        limits = [config.max_position_embeddings, num_pages * page_size]
        if max_model_len is not None:
            limits.append(max_model_len)
        self.info = ExecutorInfo(num_pages, page_size, config.vocab_size, max_model_len=min(limits))
        self.model = model
        self.draw_truncated = options.draw_truncated
        self.uploads = options.make_uploads(model.device)
        num_kept = num_pages + (options.graphs is not None)
        self._pool = KvPool(config, num_kept, page_size, model.dtype, model.device, stored_dtype=options.kv_dtype)
        self._attention = options.make_attention(self._pool, config)
        # Attention backends reuse the memory from which a step's page tables are copied.
        self._inputs_taken = Mark(model.device)
        self._collectives = options.collectives
        self._graph_options = options.graphs
        self._graphs: DecodeGraphs | None = None
        if self._collectives is None:
            self.record_graphs()

    def compute(self, sequences: Sequence[SequencePlan], fill_in: FillIn | None) -> tuple[StepBatch, Tensor]:
        """The batch, which is padded where a graph computes it, and the hidden states of its tokens.

        To be called within a step of `uploads`.

        `fill_in` puts in what the step before samples; None where the step before sampled nothing, and at ranks that
        do not sample: they get the tokens from rank 0.
        """
        self._inputs_taken.wait()
        graph = self._graphs.holding(sequences) if self._graphs is not None else None
        if graph is not None:
            sequences = graph.padded(sequences)
        device = self.model.device
        batch = StepBatch.build(sequences, self.info.page_size, self.uploads)
        if batch.pending:
            self._fill_in(batch, fill_in)
        if graph is not None:
            graph.fill(batch)
            self._inputs_taken = Mark(device)
            return batch, graph.hidden_states()
        attend = self._attention.prepare(batch)
        self._inputs_taken = Mark(device)
        return batch, self.model.hidden_states(batch.token_ids, batch.positions, attend)

    def record_graphs(self, sizes: Sequence[int] | None = None) -> None:
        """Of decodes: for the numbers of rows in the options, or for `sizes`, which may be none. Ranks do it together,
        for the same sizes."""
        options = self._graph_options
        if options is not None and sizes is not None:
            options = replace(options, sizes=tuple(sizes))
        if options is None or not options.sizes:
            return
        with self.uploads.step():
            self._graphs = DecodeGraphs(
                self.model,
                self._pool,
                self._attention,
                options,
                uploads=self.uploads,
                pages_per_sequence=-(-self.info.max_model_len // self.info.page_size),
                scratch_page=self.info.num_pages,
            )

    def drop_graphs(self) -> None:
        """Decodes run kernel by kernel until graphs are recorded anew."""
        if self._graphs is not None:
            self._graphs.close()
        self._graphs = None

    def clear(self) -> None:
        """Forgets all keys and values."""
        self._pool.clear()

    def _fill_in(self, batch: StepBatch, fill_in: FillIn | None) -> None:
        assert fill_in is not None or self._collectives is not None, "a pending token, and no step before"
        if fill_in is not None:
            fill_in(batch)
        if self._collectives is not None:
            self._collectives.broadcast(batch.token_ids)
