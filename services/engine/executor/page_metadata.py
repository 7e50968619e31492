"""Where the keys and values of a step's sequences are, in the form that kernels for paged attention take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from services.engine.executor.transfers import host_tensor
from services.engine.executor.uploads import Uploads
from services.engine.plan import SequencePlan


@dataclass(frozen=True, slots=True)
class PageMetadata:
    """Pages and queries of sequences one after another. All tensors are int32; they are on the CPU, where plans are
    made, but for `indices`, which is where the pages are.

    Sequence i has the queries `query_indptr[i]` … `query_indptr[i + 1] - 1` and the pages `indices[indptr[i]]` …
    `indices[indptr[i + 1] - 1]`. All pages are full but the last, which holds `last_page_len[i]` tokens. The queries
    are the last tokens of these.
    """

    query_indptr: Tensor  # [sequences + 1]
    indptr: Tensor  # [sequences + 1]
    indices: Tensor  # [pages of all sequences]
    last_page_len: Tensor  # [sequences], 1 to page_size

    @classmethod
    def of(cls, sequences: Sequence[SequencePlan], page_size: int, uploads: Uploads) -> PageMetadata:
        """Only the pages that hold tokens by the end of the step: a page table may have been given more."""
        ends = [s.start + len(s.token_ids) for s in sequences]
        pages = [s.page_table[: -(-end // page_size)] for s, end in zip(sequences, ends, strict=True)]

        def on_host(values: list[int]) -> Tensor:
            return host_tensor(values, torch.int32, uploads.device)

        return cls(
            query_indptr=on_host([0, *accumulate(len(s.token_ids) for s in sequences)]),
            indptr=on_host([0, *accumulate(map(len, pages))]),
            indices=uploads([page for table in pages for page in table], torch.int32),
            last_page_len=on_host([(end - 1) % page_size + 1 for end in ends]),
        )
