"""Page metadata lists exactly the tokens that a step's queries may see."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.engine.executor.page_metadata import PageMetadata
from services.engine.executor.uploads import Uploads
from services.engine.plan import SequencePlan

UPLOADS = Uploads(torch.device("cpu"))


def _sequence(start: int, length: int, page_table: list[int]) -> SequencePlan:
    return SequencePlan(1, [0] * length, start, page_table, [])


@pytest.mark.parametrize(
    ("start", "length", "pages", "last"),
    [(0, 1, [7], 1), (0, 4, [7], 4), (3, 1, [7], 4), (4, 1, [7, 3], 1), (2, 5, [7, 3], 3), (0, 9, [7, 3, 5], 1)],
)
def test_page_boundaries(start: int, length: int, pages: list[int], last: int) -> None:
    """A table of three pages, of which the scheduler may have given the last ones for later."""
    metadata = PageMetadata.of([_sequence(start, length, [7, 3, 5])], 4, UPLOADS)
    assert metadata.indices.tolist() == pages
    assert metadata.indptr.tolist() == [0, len(pages)]
    assert metadata.last_page_len.tolist() == [last]
    assert metadata.query_indptr.tolist() == [0, length]


def test_sequences_that_share_a_prefix_list_its_pages_each() -> None:
    shared = [4, 9]
    metadata = PageMetadata.of([_sequence(8, 1, [*shared, 2]), _sequence(8, 3, [*shared, 6])], 4, UPLOADS)
    assert metadata.indices.tolist() == [4, 9, 2, 4, 9, 6]
    assert metadata.indptr.tolist() == [0, 3, 6]
    assert metadata.last_page_len.tolist() == [1, 3]
    assert metadata.query_indptr.tolist() == [0, 1, 4]


@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=6),
    st.sampled_from([1, 3, 16]),
)
def test_the_tokens_of_the_pages_are_those_up_to_each_chunk_s_end(
    chunks: list[tuple[int, int, int]], page_size: int
) -> None:
    sequences, free = [], iter(range(10_000))
    for start, length, spare in chunks:
        num_pages = -(-(start + length) // page_size) + spare
        sequences.append(_sequence(start, length, [next(free) for _ in range(num_pages)]))
    metadata = PageMetadata.of(sequences, page_size, UPLOADS)
    for i, sequence in enumerate(sequences):
        table = metadata.indices[metadata.indptr[i] : metadata.indptr[i + 1]].tolist()
        last = int(metadata.last_page_len[i])
        slots = [(page, slot) for page in table for slot in range(page_size if page != table[-1] else last)]
        end = sequence.start + len(sequence.token_ids)
        assert slots == [(sequence.page_table[p // page_size], p % page_size) for p in range(end)]
        assert metadata.query_indptr[i + 1] - metadata.query_indptr[i] == len(sequence.token_ids)
