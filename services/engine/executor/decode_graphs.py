"""Decodes as recorded graphs: the hundreds of kernels that a step launches are launched as one.

A graph has a fixed number of rows and works on tensors that stay where they are: inputs are copied in, the graph is
replayed, and its output is read. A step of fewer decodes is padded to the next size with decodes that are nobody's:
their keys and values go to a page that no sequence is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from services.engine.executor.attention import AttentionBackend, FixedDecodes
from services.engine.executor.batch import StepBatch
from services.engine.executor.kv_pool import KvPool
from services.engine.executor.uploads import Uploads
from services.engine.models.decoder import Decoder
from services.engine.plan import SequencePlan

_STEP = 8  # rows from one size to the next, once there are that many


class Recording(Protocol):
    """Kernels that were recorded."""

    def replay(self) -> None:
        """Launches all of them, on the tensors that they were recorded with."""
        ...

    def reset(self) -> None:
        """Forgets them, and frees what they hold; it cannot be replayed any more."""
        ...


class Recorder(Protocol):
    """Records what a function launches. It must not depend on values that are on the device."""

    def warm_up(self, run: Callable[[], Tensor]) -> None:
        """Runs it without recording: what is compiled, loaded or chosen at first use is so before it is recorded."""
        ...

    def record(self, run: Callable[[], Tensor]) -> tuple[Recording, Tensor]:
        """Also returns the tensor in which each replay leaves the result; the next replay of any graph may void it."""
        ...


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Which graphs an executor shall have."""

    make_recorder: Callable[[], Recorder]
    sizes: tuple[int, ...]  # rows, ascending


def graph_sizes(largest: int) -> tuple[int, ...]:
    """Rows of graphs for steps of up to `largest` decodes: few of them, and none pads a step by much."""
    small = (size for size in (1, 2, 4) if size < largest)
    return (*small, *range(_STEP, largest, _STEP), largest)


class DecodeGraphs:
    """All graphs of an executor, recorded at once."""

    def __init__(
        self,
        model: Decoder,
        pool: KvPool,
        attention: AttentionBackend,
        options: GraphOptions,
        *,
        uploads: Uploads,
        pages_per_sequence: int,
        scratch_page: int,
    ) -> None:
        """pages_per_sequence: of the longest one; scratch_page: a page of the pool that no sequence is ever given."""
        fixed = attention.fixed_decodes(options.sizes, pages_per_sequence)
        inputs = torch.zeros((2, options.sizes[-1]), dtype=torch.int64, device=pool.device)
        recorder = options.make_recorder()
        # The largest first: the others find room in the memory that it took.
        pairs = reversed(list(zip(options.sizes, fixed, strict=True)))
        self._by_size: list[DecodeGraph] = []
        make = partial(
            DecodeGraph,
            model,
            recorder=recorder,
            uploads=uploads,
            scratch_page=scratch_page,
            page_size=pool.page_size,
        )
        try:
            for size, decodes in pairs:
                self._by_size.insert(0, make(inputs[:, :size], decodes))
        except BaseException:
            self.close()
            raise

    def holding(self, sequences: Sequence[SequencePlan]) -> DecodeGraph | None:
        """The smallest one for a step; None for a step that has more sequences, or others than decodes."""
        if not all(sequence.is_decode for sequence in sequences):
            return None
        return next((graph for graph in self._by_size if graph.size >= len(sequences)), None)

    def close(self) -> None:
        """Frees what the recordings hold, whoever still has a reference on one."""
        for graph in self._by_size:
            graph.close()


class DecodeGraph:
    """The decoder's layers over `size` decodes."""

    def __init__(
        self,
        model: Decoder,
        inputs: Tensor,
        attention: FixedDecodes,
        *,
        recorder: Recorder,
        uploads: Uploads,
        scratch_page: int,
        page_size: int,
    ) -> None:
        """inputs: [2, size], int64, for token ids and positions; other graphs may use the same memory."""
        self.size = inputs.shape[1]
        self._token_ids, self._positions = inputs
        self._attention = attention
        self._scratch_page = scratch_page

        def run() -> Tensor:
            return model.hidden_states(self._token_ids, self._positions, attention.attend)

        with torch.inference_mode():
            self.fill(StepBatch.build(self.padded([]), page_size, uploads))
            recorder.warm_up(run)
            self._recording, self._output = recorder.record(run)

    def padded(self, sequences: Sequence[SequencePlan]) -> list[SequencePlan]:
        """With as many decodes of nobody's as are missing. They all write the same slot, and read nothing else."""
        pads = self.size - len(sequences)
        return [*sequences, *(SequencePlan(-1, [0], 0, [self._scratch_page], []) for _ in range(pads))]

    def close(self) -> None:
        """Frees what the recording holds."""
        self._recording.reset()

    def hidden_states(self) -> Tensor:
        """[size, hidden_size], as `Decoder.hidden_states`; valid until the next call."""
        self._recording.replay()
        return self._output

    def fill(self, batch: StepBatch) -> None:
        """Takes the inputs of the next step. batch: of `padded` decodes."""
        self._token_ids.copy_(batch.token_ids)
        self._positions.copy_(batch.positions)
        self._attention.fill(batch)
