"""All samplers draw from exactly the distribution that the parameters describe."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.engine.executor import sampler
from services.engine.executor.errors import NonFiniteLogitsError
from services.engine.executor.flashinfer_truncation import FlashInferTruncation
from services.engine.plan import SamplingJob, SamplingParams
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu

Sample = Callable[[Tensor, Sequence[SamplingJob]], list[int]]
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0, 1.0])
DRAWS = 20000


@pytest.fixture(params=["torch", "flashinfer", "native"])
def sample(request: pytest.FixtureRequest) -> Sample:
    if request.param == "torch":
        return sampler.sample
    if request.param == "flashinfer":
        return partial(sampler.sample, draw=FlashInferTruncation(FlashInferOnCpu()).draw)
    pytest.importorskip("postroad_native")
    from services.engine.executor import native_sampler  # noqa: PLC0415

    return lambda logits, jobs: native_sampler.sample(logits.float().contiguous().numpy(), jobs, threads=1)


def _job(
    index: int = 0, prompt: Any = (), output: Any = None, forbidden: frozenset[int] = frozenset(), **params: Any
) -> SamplingJob:
    """A job whose random number is that of its seed's token number `index`."""
    return SamplingJob(SamplingParams(**params), prompt, range(index) if output is None else output, forbidden)


def _draws(sample: Sample, logits: Tensor, **params: Any) -> Counter[int]:
    """Tokens drawn by one seeded sequence, and by as many sequences of their own seeds."""
    one = sample(logits.expand(DRAWS // 2, -1), [_job(i, seed=77, **params) for i in range(DRAWS // 2)])
    many = sample(logits.expand(DRAWS // 2, -1), [_job(3, seed=i, **params) for i in range(DRAWS // 2)])
    return Counter(one + many)


def _assert_distribution(drawn: Counter[int], expected: Tensor) -> None:
    """Chi-square within four standard deviations; tokens of probability 0 never occur. The seeds are fixed."""
    allowed = [i for i, p in enumerate(expected.tolist()) if p > 0]
    assert set(drawn) <= set(allowed)
    counts = [float(expected[i]) * DRAWS for i in allowed]
    chi_square = sum((drawn[i] - count) ** 2 / count for i, count in zip(allowed, counts, strict=True))
    degrees = len(allowed) - 1
    assert chi_square <= degrees + 4 * math.sqrt(2 * degrees)


def _masked(probabilities: Tensor, *kept: int) -> Tensor:
    mask = torch.zeros_like(probabilities)
    mask[list(kept)] = 1.0
    return probabilities * mask / (probabilities * mask).sum()


# Ranked: 0, then 1 and 7 (equal), 2, 3, 4, 5, 6.
P = LOGITS.double().softmax(-1)
HOT = (LOGITS.double() / 2).softmax(-1)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, P),
        ({"temperature": 2.0}, HOT),
        ({"temperature": 0.5}, (LOGITS.double() / 0.5).softmax(-1)),
        ({"top_k": 1}, _masked(P, 0)),
        ({"top_k": 2}, _masked(P, 0, 1)),  # of the equal 1 and 7, the lower id
        ({"top_k": 4, "temperature": 2.0}, _masked(HOT, 0, 1, 7, 2)),
        ({"top_k": 8}, P),
        ({"top_k": 1000}, P),
        ({"top_p": 0.4}, _masked(P, 0)),  # 0.44 alone is enough
        ({"top_p": 0.5}, _masked(P, 0, 1)),
        ({"top_p": 0.7}, _masked(P, 0, 1, 7)),
        ({"top_p": 0.7, "temperature": 2.0}, _masked(HOT, 0, 1, 7, 2)),
        ({"min_p": 0.3}, _masked(P, 0, 1, 7)),  # e^-1 = 0.37, e^-1.5 = 0.22
        ({"min_p": 1.0}, _masked(P, 0)),
        ({"min_p": 0.3, "temperature": 2.0}, _masked(HOT, 0, 1, 7, 2, 3)),  # after temperature: e^-1, e^-1.25
        ({"top_k": 3, "top_p": 0.7}, _masked(P, 0, 1)),  # 0.44 + 0.16 of 0.76 is 0.79
        ({"min_p": 0.2, "top_p": 0.9}, _masked(P, 0, 1, 7, 2)),
        ({"min_p": 0.3, "top_k": 7}, _masked(P, 0, 1, 7)),
        (
            {"logit_bias": {6: 5.0, 0: -2.0}},
            (LOGITS.double() + torch.tensor([-2.0, 0, 0, 0, 0, 0, 5.0, 0])).softmax(-1),
        ),
    ],
    ids=lambda value: ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_draws_follow_the_exact_distribution(sample: Sample, params: dict[str, Any], expected: Tensor) -> None:
    _assert_distribution(_draws(sample, LOGITS, **params), expected)


class _Mask:
    def __init__(self, vocab_size: int, *allowed: int) -> None:
        self._words = np.zeros(-(-vocab_size // 32), np.uint32)
        for token_id in allowed:
            self._words[token_id // 32] |= np.uint32(1 << token_id % 32)

    def words(self) -> Any:
        return self._words.view(np.int32)


def test_a_grammar_leaves_the_others_their_proportions(sample: Sample) -> None:
    mask = _Mask(8, 1, 3, 7)
    jobs = [_job(3, seed=i) for i in range(DRAWS)]
    for job in jobs:
        job.restrict(mask)
    _assert_distribution(Counter(sample(LOGITS.expand(DRAWS, -1), jobs)), _masked(P, 1, 3, 7))


def test_rows_with_and_without_a_grammar(sample: Sample) -> None:
    logits = torch.zeros(4, 100)
    logits[:, 99] = 1.0
    jobs = [_job(temperature=0.0, forbidden=frozenset({99})), *(_job(temperature=0.0) for _ in range(3))]
    jobs[0].restrict(_Mask(100, 99))  # a mask knows better than forbidden ids
    jobs[2].restrict(_Mask(100, 31, 32, 64))
    assert sample(logits, jobs) == [99, 99, 31, 99]
    assert logits[2, 99] == 1.0


def test_probabilities_of_a_whole_vocabulary(sample: Sample) -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(0))
    _assert_distribution(_draws(sample, logits), logits.double().softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_lowest_id_of_equal_logits(sample: Sample, dtype: torch.dtype) -> None:
    logits = torch.full((4, 49152), -1.0, dtype=dtype)
    logits[0, [40000, 7, 9]] = 2.0
    logits[1, [49151, 31, 32]] = 2.0
    logits[2, 49151] = 2.0
    jobs = [_job(temperature=0.0)] * 4
    assert sample(logits, jobs) == [7, 31, 49151, 0]
    edited = [_job(temperature=0.0, logit_bias={5: -1.0}), *jobs[1:]]
    assert sample(logits, edited) == [7, 31, 49151, 0]


def _greedy(sample: Sample, logits: list[float], **job: Any) -> int:
    [token] = sample(torch.tensor([logits]), [_job(temperature=0.0, **job)])
    return token


def test_presence_penalty_counts_a_token_of_the_output_once(sample: Sample) -> None:
    assert _greedy(sample, [3.0, 2.5, 0.0], output=[0, 0, 0], presence_penalty=0.4) == 0
    assert _greedy(sample, [3.0, 2.5, 0.0], output=[0], presence_penalty=0.6) == 1
    assert _greedy(sample, [3.0, 2.5, 0.0], prompt=[0], output=[], presence_penalty=2.0) == 0
    assert _greedy(sample, [3.0, 2.5, 0.0], output=[2], presence_penalty=-2.0) == 0
    assert _greedy(sample, [3.0, 2.5, 1.5], output=[2], presence_penalty=-2.0) == 2


def test_frequency_penalty_counts_every_occurrence_in_the_output(sample: Sample) -> None:
    assert _greedy(sample, [3.0, 2.5, 0.0], output=[0], frequency_penalty=0.4) == 0
    assert _greedy(sample, [3.0, 2.5, 0.0], output=[0, 0], frequency_penalty=0.4) == 1
    assert _greedy(sample, [3.0, 2.5, 0.0], prompt=[0, 0], output=[], frequency_penalty=2.0) == 0


def test_repetition_penalty_takes_prompt_and_output_whatever_the_sign(sample: Sample) -> None:
    assert _greedy(sample, [3.0, 2.0, -9.0], prompt=[0], output=[], repetition_penalty=2.0) == 1
    assert _greedy(sample, [3.0, 2.0, -9.0], output=[0], repetition_penalty=2.0) == 1
    # Once, not per occurrence.
    assert _greedy(sample, [3.0, 2.0, -9.0], prompt=[0, 0], output=[0], repetition_penalty=1.4) == 0
    assert _greedy(sample, [-1.0, -1.5], output=[0], repetition_penalty=2.0) == 1  # negative logits are multiplied
    assert _greedy(sample, [3.0, 2.5], output=[1], repetition_penalty=0.5) == 1


def test_penalties_come_before_bias(sample: Sample) -> None:
    """Halved, then raised by 2: 3.5. The other order would give 2.5."""
    assert _greedy(sample, [3.0, 3.2], output=[0], repetition_penalty=2.0, logit_bias={0: 2.0}) == 0


def test_logit_bias_can_force_and_ban(sample: Sample) -> None:
    assert _greedy(sample, [3.0, 2.0, -90.0], output=[], logit_bias={2: 100.0}) == 2
    assert _greedy(sample, [3.0, 2.0, -90.0], output=[], logit_bias={0: -100.0}) == 1


def test_fieldbug_09_forbidden_ids_are_never_chosen(sample: Sample) -> None:
    """Stop ids before min_tokens: neither greedy, nor drawn, nor forced by a bias."""
    assert _greedy(sample, [9.0, 8.0, 1.0], output=[], forbidden=frozenset({0, 1}), logit_bias={1: 100.0}) == 2
    jobs = [_job(i, forbidden=frozenset({0, 3}), seed=1) for i in range(DRAWS)]
    _assert_distribution(Counter(sample(LOGITS.expand(DRAWS, -1), jobs)), _masked(P, 1, 2, 4, 5, 6, 7))


def test_logits_are_left_as_they_are(sample: Sample) -> None:
    logits = torch.stack((LOGITS, LOGITS))
    sample(logits, [_job(3, repetition_penalty=2.0, min_p=0.1), _job(forbidden=frozenset({1}), temperature=0.0)])
    assert torch.equal(logits, torch.stack((LOGITS, LOGITS)))


def test_a_seeded_row_does_not_depend_on_its_batch(sample: Sample) -> None:
    logits = torch.randn(12, 5000, generator=torch.Generator().manual_seed(5)).bfloat16()
    jobs = [
        _job(4, seed=1),
        _job(0, temperature=0.0),
        _job(9, seed=1, top_p=0.9),
        _job(2, seed=3, top_k=40),
        _job(2, seed=4, top_k=4500, top_p=0.99),
        _job(5, seed=5, min_p=0.05),
        _job(5, seed=6, min_p=0.05, top_k=3, temperature=0.3),
        _job(5, seed=7, frequency_penalty=1.0),
        _job(5, seed=8, repetition_penalty=1.3, prompt=[4, 5], top_p=0.5),
        _job(5, temperature=0.0, presence_penalty=1.0),
        _job(0, seed=2**64 - 1, logit_bias={17: 4.0}),
        _job(3, seed=9, temperature=2.0, forbidden=frozenset({1, 2})),
    ]
    together = sample(logits, jobs)
    assert [sample(logits[i : i + 1], [job])[0] for i, job in enumerate(jobs)] == together
    assert sample(logits.flip(0), jobs[::-1])[::-1] == together


def test_successive_tokens_of_a_sequence_get_numbers_of_their_own(sample: Sample) -> None:
    logits = torch.zeros(64, 1000)
    assert len(set(sample(logits, [_job(i, seed=5) for i in range(64)]))) > 55
    assert len(set(sample(logits, [_job(5, seed=i) for i in range(64)]))) > 55
    assert len(set(sample(logits, [_job(5, seed=5)] * 64))) == 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45])
def test_the_lowest_temperatures_are_greedy(sample: Sample, temperature: float) -> None:
    jobs = [_job(i, seed=i, temperature=temperature) for i in range(100)]
    assert set(sample(LOGITS.expand(100, -1), jobs)) == {0}


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("job", [_job(temperature=0.0), _job(), _job(top_p=0.5), _job(logit_bias={0: 1.0})])
def test_logits_that_are_not_finite_fail_the_step(sample: Sample, broken: float, job: SamplingJob) -> None:
    logits = LOGITS.repeat(3, 1)
    logits[1, 4] = broken
    with pytest.raises(NonFiniteLogitsError, match=r"rows \[1\]") as error:
        sample(logits, [job] * 3)
    assert error.value.rows == (1,)


def test_a_row_without_any_allowed_token_fails_the_step(sample: Sample) -> None:
    with pytest.raises(NonFiniteLogitsError):
        sample(LOGITS[None], [_job(forbidden=frozenset(range(8)))])
