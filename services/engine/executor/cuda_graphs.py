"""Recording on a CUDA device, by torch.cuda.graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from services.engine.executor.decode_graphs import Recording


class CudaRecorder:
    """Implements `Recorder`. All graphs share one pool of memory, as only one of them runs at a time."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Callable[[], Tensor]) -> None:
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # as the recording: a side one
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)

    def record(self, run: Callable[[], Tensor]) -> tuple[Recording, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            output = run()
        return graph, output
