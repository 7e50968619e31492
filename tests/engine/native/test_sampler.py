"""The native sampler against a plain implementation in float64: the same token, but where rounding decides.

What the parameters mean is tested for both samplers in tests/engine/executor/test_sampler.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

postroad_native = pytest.importorskip("postroad_native")

Logits = npt.NDArray[np.float32]
SLACK = 1e-6  # of a distribution's mass: float32 weights are exact to 2 ulp, 2.4e-7


def _sample(logits: Logits, *, threads: int = 1, edits: Any = (), isa: str = "auto", **columns: Any) -> list[int]:
    """One value per row, or one for all."""
    defaults = {"temperatures": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniforms": 0.5}
    lists = [np.full(len(logits), columns.get(name, default)).tolist() for name, default in defaults.items()]
    rows = [(t, int(k), p, low, u) for t, k, p, low, u in zip(*lists, strict=True)]
    tokens: list[int] = postroad_native.sample(logits, rows, list(edits), threads, isa)
    return tokens


def _edit(row: int, **fields: Any) -> Any:
    empty = np.empty(0, np.int32)
    defaults: dict[str, Any] = {
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "prompt_ids": empty,
        "output_ids": empty,
        "bias_ids": empty,
        "bias_values": empty.astype(np.float32),
        "forbidden_ids": empty,
    }
    return postroad_native.RowEdit(row, **defaults | fields)


def _admissible(
    logits: Logits,
    *,
    temperatures: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    uniforms: float,
) -> set[int]:
    """Sorts, cuts and draws in float64, with every sum that is compared a little lower and a little higher."""
    scaled = (logits.astype(float) - float(logits.max())) / temperatures
    weights = np.exp(scaled)
    if min_p > 0:
        weights[weights < min_p * (1 - SLACK)] = 0.0
    ids = np.arange(len(weights))
    truncates = 0 < top_k < len(weights) or top_p < 1
    if truncates:
        ids = np.lexsort((ids, -weights.astype(np.float32)))[: top_k or None]
    tokens = set()
    for share in (top_p - SLACK, top_p, top_p + SLACK) if truncates and top_p < 1 else (1.0,):
        ranked = weights[ids]
        cumulative = ranked.cumsum()
        kept = ids[cumulative - ranked < share * cumulative[-1]]
        ends = weights[kept].cumsum() / weights[kept].sum()
        low = np.searchsorted(ends, max(uniforms - SLACK, 0.0), "right")
        high = np.searchsorted(ends, min(uniforms + SLACK, 1 - 1e-15), "right")
        tokens |= {int(id) for id in kept[low : high + 1] if weights[id] > 0}
    return tokens


_PARAMETERS: list[dict[str, Any]] = [
    {},
    {"temperatures": 0.3},
    {"temperatures": 7.0},
    {"top_p": 0.95},
    {"top_p": 0.1},
    {"top_p": 0.999, "temperatures": 1.5},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 1500, "temperatures": 3.0},
    {"top_k": 50, "top_p": 0.8},
    {"min_p": 0.05},
    {"min_p": 0.02, "top_k": 20, "top_p": 0.9, "temperatures": 0.8},
]


@pytest.mark.parametrize("parameters", _PARAMETERS, ids=str)
@pytest.mark.parametrize("shape", ["flat", "peaked", "rounded"])
@pytest.mark.parametrize("vocab_size", [1999, 4096])
def test_equals_a_plain_implementation(shape: str, vocab_size: int, parameters: dict[str, Any]) -> None:
    rng = np.random.default_rng(vocab_size)
    noise = rng.standard_normal((40, vocab_size))
    logits = {"flat": noise, "peaked": noise**3, "rounded": np.round(noise * 4) / 2}[shape].astype(np.float32)
    uniforms = rng.random(40)
    tokens = _sample(logits, uniforms=uniforms, **parameters)
    for row, token in enumerate(tokens):
        assert token in _admissible(logits[row], uniforms=float(uniforms[row]), **parameters)


_few_logits = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=40)
_filters = st.fixed_dictionaries(
    {
        "temperatures": st.sampled_from([0.5, 1.0, 3.0]),
        "top_k": st.integers(0, 45),
        "top_p": st.sampled_from([0.001, 0.25, 0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "uniforms": st.floats(0, 1, exclude_max=True),
    }
)


@settings(deadline=None)
@given(_few_logits, _filters)
def test_small_vocabularies_with_many_ties_equal_a_plain_implementation(
    values: list[float], filters: dict[str, Any]
) -> None:
    logits = np.array([values], np.float32)
    assert _sample(logits, **filters)[0] in _admissible(logits[0], **filters)


@pytest.mark.parametrize("vocab_size", [1, 2, 23, 24, 25, 255, 256, 257, 5000])
def test_equal_logits_are_drawn_and_cut_in_the_order_of_ids_exactly(vocab_size: int) -> None:
    """Equal weights add up without rounding, so that every cut and every draw is known."""
    uniforms = np.linspace(0, 1, 64, endpoint=False)
    logits = np.full((64, vocab_size), -3.25, np.float32)
    half = math.ceil(vocab_size / 2)
    few = min(vocab_size, 7)
    assert _sample(logits, uniforms=uniforms) == [int(u * vocab_size) for u in uniforms]
    assert _sample(logits, uniforms=uniforms, top_p=0.5) == [int(u * half) for u in uniforms]
    assert _sample(logits, uniforms=uniforms, top_k=7) == [int(u * few) for u in uniforms]
    assert _sample(logits, uniforms=uniforms, top_k=7, top_p=0.5) == [int(u * math.ceil(few / 2)) for u in uniforms]


@pytest.mark.parametrize("parameters", [{}, {"top_p": 0.9999999}, {"top_k": 300}])
def test_the_largest_uniform_draws_the_last_token_that_can_be_drawn(parameters: dict[str, Any]) -> None:
    logits = np.full((1, 700), -200.0, np.float32)
    logits[0, 100:400] = np.linspace(4, 0, 300)  # later ones are lighter; the rest has weight 0
    assert _sample(logits, uniforms=np.nextafter(1.0, 0.0), **parameters) == [399]


def test_logits_far_below_the_highest_have_no_weight() -> None:
    logits = np.array([[0.0, -3e38, -np.inf, -88.0, -1e4]], np.float32)
    for u in (0.0, 0.3, 1 - 1e-16):
        assert _sample(logits, uniforms=u) == [0]
        assert _sample(logits, uniforms=u, top_p=0.9999) == [0]
        assert _sample(logits, uniforms=u, top_k=4) == [0]


_MANY_IDS = np.arange(0, 49152, 7, dtype=np.int32)
_EDITS: dict[int, dict[str, Any]] = {  # by row
    4: {"repetition_penalty": 1.3, "prompt_ids": _MANY_IDS},
    9: {"frequency_penalty": 0.2, "presence_penalty": 0.3, "output_ids": np.repeat(_MANY_IDS, 2)},
    21: {
        "bias_ids": _MANY_IDS[:3],
        "bias_values": np.array([3.0, -1.0, 12.5], np.float32),
        "forbidden_ids": _MANY_IDS[5:],
    },
}


def _mixed_batch() -> tuple[Logits, dict[str, Any]]:
    """37 rows of a large vocabulary with every kind of parameters."""
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((37, 49152)) * 2).astype(np.float32)
    columns = {
        "temperatures": rng.choice([0.0, 0.5, 1.0, 1.3], 37),
        "top_k": rng.choice([0, 0, 3, 50, 10000], 37),
        "top_p": rng.choice([1.0, 0.5, 0.95], 37),
        "min_p": rng.choice([0.0, 0.0, 0.03], 37),
        "uniforms": rng.random(37),
    }
    return logits, columns


def test_a_row_depends_neither_on_its_batch_nor_on_the_number_of_threads() -> None:
    logits, columns = _mixed_batch()
    edits = [_edit(row, **fields) for row, fields in _EDITS.items()]
    together = _sample(logits, edits=edits, **columns)
    assert all(_sample(logits, edits=edits, threads=threads, **columns) == together for threads in (2, 3, 64))
    for row in range(37):
        own = {name: values[row] for name, values in columns.items()}
        edits = [_edit(0, **_EDITS[row])] if row in _EDITS else []
        assert _sample(logits[row : row + 1], edits=edits, **own) == [together[row]]


@pytest.mark.parametrize("isa", postroad_native.supported_isas())
def test_every_instruction_set_gives_the_same_tokens(isa: str) -> None:
    logits, columns = _mixed_batch()
    assert _sample(logits, isa=isa, **columns) == _sample(logits, **columns)
    odd = np.ascontiguousarray(logits[:, :1003])  # whole vectors, and some elements over
    assert _sample(odd, isa=isa, **columns) == _sample(odd, **columns)
    odd[5, 1002] = np.nan
    assert _sample(odd, isa=isa, **columns)[5] == -1


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1003, 4096])
def test_ids_that_are_not_allowed_are_as_if_they_had_no_probability(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = rng.standard_normal((40, vocab_size)).astype(np.float32)
    uniforms = rng.random(40)
    allowed = rng.random((40, vocab_size)) < rng.choice([0.02, 0.5, 0.98], (40, 1))
    allowed[:, rng.integers(vocab_size)] = True
    padded = np.pad(allowed, ((0, 0), (0, -vocab_size % 32)))
    words = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    edits = [_edit(row, allowed=words[row]) for row in range(40)]
    masked = np.where(allowed, logits, -np.inf).astype(np.float32)
    for columns in ({}, {"temperatures": 0.0}, {"top_p": 0.8}, {"top_k": 5}):
        assert _sample(logits, edits=edits, uniforms=uniforms, **columns) == _sample(
            masked, uniforms=uniforms, **columns
        )


def test_a_mask_comes_after_all_other_edits() -> None:
    bias = {"bias_ids": np.array([3], np.int32), "bias_values": np.array([50.0], np.float32)}
    only_first = np.array([1], np.int32)
    assert _sample(np.zeros((1, 8), np.float32), edits=[_edit(0, allowed=only_first, **bias)]) == [0]
    with pytest.raises(ValueError, match="2 words for a vocabulary of 8"):
        _sample(np.zeros((1, 8), np.float32), edits=[_edit(0, allowed=np.zeros(2, np.int32))])


def test_logits_are_left_as_they_are() -> None:
    logits, columns = _mixed_batch()
    before = logits.copy()
    _sample(logits, edits=[_edit(row, **fields) for row, fields in _EDITS.items()], **columns)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("position", [0, 31, 32, 65, 66])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_logit_anywhere_marks_its_row_alone(position: int, broken: float) -> None:
    logits = np.zeros((3, 67), np.float32)
    logits[:, 5] = 1.0
    logits[1, position] = broken
    assert _sample(logits, temperatures=0.0) == [5, -1, 5]
    assert _sample(logits, top_k=1) == [5, -1, 5]


def test_a_row_that_allows_no_token_is_marked() -> None:
    assert _sample(np.full((1, 40), -np.inf, np.float32)) == [-1]
    assert _sample(np.zeros((1, 3), np.float32), edits=[_edit(0, forbidden_ids=np.arange(3, dtype=np.int32))]) == [-1]


@pytest.mark.parametrize("position", [0, 1, 63, 64, 127, 128, 129])
def test_greedy_finds_the_first_of_equal_logits_anywhere(position: int) -> None:
    logits = np.linspace(-2, -1, 130, dtype=np.float32)[None]
    logits[0, position:] = 0.5
    assert _sample(logits, temperatures=0.0) == [position]


def test_no_rows() -> None:
    assert _sample(np.empty((0, 50), np.float32)) == []


@pytest.mark.parametrize("field", ["prompt_ids", "output_ids", "forbidden_ids"])
@pytest.mark.parametrize("token_id", [-1, 10])
def test_ids_outside_the_vocabulary_are_refused(field: str, token_id: int) -> None:
    with pytest.raises(IndexError, match=f"token id {token_id} is outside"):
        _sample(np.zeros((1, 10), np.float32), edits=[_edit(0, **{field: np.array([3, token_id], np.int32)})])


def test_arguments_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(IndexError, match="no row 1"):
        _sample(np.zeros((1, 10), np.float32), edits=[_edit(1)])
    with pytest.raises(ValueError, match="isa 'mmx'"):
        _sample(np.zeros((1, 10), np.float32), isa="mmx")
    with pytest.raises(ValueError, match="as many bias_values"):
        _edit(0, bias_ids=np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="per row"):
        postroad_native.sample(np.zeros((4, 9), np.float32), [(1.0, 0, 1.0, 0.0, 0.5)] * 5, edits=[], threads=1)
