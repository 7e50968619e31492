"""Ranks that are given a step while the one before it runs, decodes as recorded graphs included: tokens of one rank."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from services.engine.executor.decode_graphs import GraphOptions
from services.engine.executor.flashinfer_attention import FlashInferAttention
from services.engine.executor.model_runner import ModelRunner, RunnerOptions
from services.engine.executor.torch_executor import TorchExecutor
from services.engine.models.fp8 import E4M3
from services.engine.ranks.group import RankGroup
from services.engine.ranks.process_groups import GLOO, Meeting, NcclMeeting
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.executor.serving import requests, served
from tests.engine.models.reference import FAMILIES, decoder
from tests.engine.ranks.nccl_on_cpu import NcclOnCpu
from tests.engine.ranks.test_equal_tokens import part_of
from tests.engine.ranks.thread_ranks import OverlappedThreadRanks, thread_ranks

LLAMA = FAMILIES["llama, 9 heads, 3 KV heads"]


@pytest.mark.parametrize(("with_graphs", "kv_dtype"), [(False, None), (False, E4M3), (True, None)])
def test_tokens_are_those_of_one_rank(with_graphs: bool, kv_dtype: torch.dtype | None) -> None:
    """What is sampled reaches the others in the group: the plan has no token yet."""
    runner = ModelRunner(decoder(LLAMA), 24, 4, options=RunnerOptions(kv_dtype=kv_dtype))
    expected = served(TorchExecutor(runner), requests())
    recorders: list[RecorderOnCpu] = []

    def recorder() -> RecorderOnCpu:
        recorders.append(RecorderOnCpu())
        return recorders[-1]

    def options(group: RankGroup) -> RunnerOptions:
        if not with_graphs:
            return RunnerOptions(kv_dtype=kv_dtype, collectives=group)
        attention = partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=64)
        sizes = (1, 2, 4) if group.rank == 0 else ()  # rank 0 decides
        return RunnerOptions(attention, GraphOptions(recorder, sizes), collectives=group)

    meeting: Meeting = NcclMeeting(NcclOnCpu()) if with_graphs else GLOO  # Gloo's collectives cannot be recorded
    with thread_ranks(
        2, part_of(LLAMA), num_pages=24, page_size=4, options=options, meeting=meeting, kind=OverlappedThreadRanks
    ) as ranks:
        tokens, logprobs, num_ahead = served(ranks, requests())
    assert tokens == expected[0]
    for sequence_id, values in logprobs.items():
        assert values == pytest.approx(expected[1][sequence_id], abs=1e-4)
    assert num_ahead > 5
    if with_graphs:
        ours, theirs = (recorder.log for recorder in recorders)
        assert ours == theirs
        assert ours[:6] == ["warm up 4", "record 4", "warm up 2", "record 2", "warm up 1", "record 1"]
        assert {"replay 4", "replay 2", "replay 1"} <= set(ours)
