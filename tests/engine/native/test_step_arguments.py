"""Arguments that make no sense are refused before anything is computed, and the model works on afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import postroad_native
import pytest

from tests.engine.models.reference import FAMILIES
from tests.engine.native.stepping import Arguments, native_model, plan, prompt, run

LLAMA = FAMILIES["llama"]
_TOP = 2**31 - 1


@pytest.fixture(scope="module")
def model() -> postroad_native.Model:
    return native_model(LLAMA, num_pages=8)


def _arguments() -> Arguments:
    """Two sequences: a prefill of 20 tokens, and a decode at position 40."""
    return Arguments.of([plan(prompt(1, 20), [1, 2]), plan([5], [3, 4, 5], 40)])


@pytest.mark.parametrize(
    ("field", "index", "value"),
    [
        ("token_ids", 3, 97),
        ("token_ids", 3, -1),
        ("token_ids", 20, _TOP),
        ("page_table", 4, 8),
        ("page_table", 0, -1),
        ("page_table", 0, -(2**31)),
        ("logit_rows", 0, 21),
        ("logit_rows", 1, -1),
        ("context_lengths", 1, 49),
    ],
)
def test_ids_pages_and_rows_out_of_range(model: postroad_native.Model, field: str, index: int, value: int) -> None:
    arguments = _arguments()
    if field == "context_lengths":  # and positions that agree with it: then the page table is too short
        arguments.positions[20] = value - 1
    getattr(arguments, field)[index] = value
    with pytest.raises(IndexError):
        run(model, arguments)


@pytest.mark.parametrize(
    ("field", "index", "value"),
    [
        ("positions", 0, 1),
        ("positions", 5, -5),
        ("positions", 20, 39),
        ("context_lengths", 0, 19),
        ("context_lengths", 0, -1),
        ("context_lengths", 1, _TOP),
        ("context_lengths", 1, -(2**31)),
        ("sequence_offsets", 0, 1),
        ("sequence_offsets", 1, 21),
        ("sequence_offsets", 1, -3),
        ("sequence_offsets", 2, 22),
        ("page_table_offsets", 0, -1),
        ("page_table_offsets", 1, 6),
        ("page_table_offsets", 2, _TOP),
    ],
)
def test_values_that_do_not_fit_together(model: postroad_native.Model, field: str, index: int, value: int) -> None:
    arguments = _arguments()
    getattr(arguments, field)[index] = value
    with pytest.raises(ValueError, match=r"positions|context_length|offsets"):
        run(model, arguments)


@pytest.mark.parametrize(
    "field", ["token_ids", "positions", "sequence_offsets", "context_lengths", "page_table", "page_table_offsets"]
)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_lists_of_other_lengths(model: postroad_native.Model, field: str, change: str) -> None:
    arguments = _arguments()
    values = getattr(arguments, field)
    setattr(arguments, field, {"shorter": values[:-1], "longer": [*values, values[-1]], "empty": []}[change])
    with pytest.raises((ValueError, IndexError)):
        run(model, arguments)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 1.0, None, [1]])
def test_what_is_no_int32(model: postroad_native.Model, value: Any) -> None:
    arguments = _arguments()
    arguments.positions[3] = value
    with pytest.raises(TypeError):
        run(model, arguments)


def test_a_refused_step_changes_nothing(model: postroad_native.Model) -> None:
    expected = run(model, _arguments())
    spoilt = _arguments()
    spoilt.token_ids = [1] * len(spoilt.token_ids)
    spoilt.logit_rows[0] = 21
    with pytest.raises(IndexError):
        run(model, spoilt)
    again = Arguments.of([plan([5], [3, 4, 5], 40)])
    np.testing.assert_array_equal(run(model, again)[0], expected[1])
