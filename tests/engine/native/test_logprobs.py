"""Log-probabilities in C++ against float64, and the rows of a step that are kept for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import postroad_native
import pytest

from tests.engine.models.reference import FAMILIES
from tests.engine.native.stepping import Arguments, native_model, plan, prompt, run

ISAS = postroad_native.supported_isas()
Floats = npt.NDArray[np.float32]


def _logits(rows: int, vocab_size: int, seed: int = 0, scale: float = 6.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal((rows, vocab_size)) * scale).astype(np.float32)


def _call(logits: Floats, rows: list[int], token_ids: list[int], num_top: int, **options: object) -> tuple[Floats, ...]:
    result: tuple[Floats, ...] = postroad_native.logprobs(
        logits, np.array(rows, np.int32), np.array(token_ids, np.int32), num_top, **{"threads": 1, **options}
    )
    return result


def _expected(row: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Log-probabilities by id, and ids by rank."""
    exact = row.astype(np.float64)
    highest = exact.max()
    return exact - highest - np.log(np.exp(exact - highest).sum()), np.argsort(-exact, kind="stable")


@pytest.mark.parametrize("vocab_size", [1, 7, 97, 1500, 49152])
def test_they_equal_log_softmax(vocab_size: int) -> None:
    logits = _logits(5, vocab_size)
    rows, num_top = [3, 0, 4, 3], min(20, vocab_size)
    token_ids = [0, vocab_size - 1, vocab_size // 2, vocab_size // 3]
    logprobs, ranks, top_ids, top_logprobs = _call(logits, rows, token_ids, num_top)
    for index, (row, token_id) in enumerate(zip(rows, token_ids, strict=True)):
        expected, order = _expected(logits[row])
        assert logprobs[index] == pytest.approx(expected[token_id], abs=2e-6, rel=1e-6)
        assert order[ranks[index] - 1] == token_id
        assert top_ids[index].tolist() == order[:num_top].tolist()
        np.testing.assert_allclose(top_logprobs[index], expected[order[:num_top]], rtol=1e-6, atol=2e-6)


def test_of_equal_logits_the_lowest_id_comes_first() -> None:
    logits = np.zeros((1, 2000), np.float32)
    logits[0, 1200:] = 3.0
    _, ranks, top_ids, _ = _call(logits, [0, 0], [1203, 2], 5)
    assert ranks.tolist() == [4, 803]
    assert top_ids.tolist() == [[1200, 1201, 1202, 1203, 1204]] * 2


def test_logits_that_rise_to_the_end() -> None:
    """The first logits say nothing of the highest ones."""
    logits = np.arange(5000, dtype=np.float32)[None] / 100
    _, ranks, top_ids, _ = _call(logits, [0], [4999], 20)
    assert ranks.tolist() == [1]
    assert top_ids[0].tolist() == list(range(4999, 4979, -1))


@pytest.mark.parametrize("isa", ISAS)
def test_figures_depend_neither_on_instructions_nor_on_threads(isa: str) -> None:
    logits = _logits(40, 49152)
    ids = [1000 * i for i in range(40)]
    alone = [_call(logits, [row], [ids[row]], 4, isa="portable") for row in range(40)]
    together = _call(logits, list(range(40)), ids, 4, isa=isa, threads=3)
    for index, figures in enumerate(together):
        assert figures.tobytes() == b"".join(one[index].tobytes() for one in alone)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_gives_nan(value: float) -> None:
    logits = _logits(2, 300)
    logits[1, 17] = value
    logprobs, *_ = _call(logits, [0, 1], [5, 5], 3)
    assert np.isfinite(logprobs[0])
    assert np.isnan(logprobs[1])


@pytest.mark.parametrize(("rows", "ids"), [([2], [0]), ([-1], [0]), ([0], [97]), ([0], [-1])])
def test_rows_and_ids_that_there_are_not(rows: list[int], ids: list[int]) -> None:
    with pytest.raises(IndexError, match="not in"):
        _call(_logits(2, 97), rows, ids, 1)


def test_more_alternatives_than_tokens() -> None:
    with pytest.raises(ValueError, match="num_top"):
        _call(_logits(1, 97), [0], [0], 98)


@pytest.mark.parametrize("weight_format", ["f32", "bf16"])
def test_logits_of_state_rows_are_those_of_logit_rows_bit_for_bit(weight_format: str) -> None:
    """Whatever rows are wanted in which way, once or twice, and however they are cut into calls."""
    plans = [plan(prompt(1, 33), [0, 1, 2]), plan(prompt(2, 20), [3, 4])]
    config = FAMILIES["llama, 9 heads, 3 KV heads"]
    every = run(native_model(config, weight_format=weight_format), Arguments.of(plans, range(53)))
    model = native_model(config, weight_format=weight_format, threads=2)
    wanted = [*range(5, 40), 52, 52, *range(53)]
    arguments = Arguments.of(plans, [52, 7])
    logits = model.step(**vars(arguments), state_rows=wanted)
    assert np.array(logits).tobytes() == every[[52, 7]].tobytes()
    parts = [model.state_logits(first, min(16, len(wanted) - first)) for first in range(0, len(wanted), 16)]
    assert np.concatenate(parts).tobytes() == every[wanted].tobytes()
    states = model.states()
    assert states.shape == (len(wanted), config["hidden_size"])
    assert states[35].tobytes() == states[36].tobytes() != states[0].tobytes()
    with pytest.raises(IndexError):
        model.state_logits(len(wanted) - 1, 2)
    model.step(**vars(arguments))
    assert model.states().shape[0] == 0
