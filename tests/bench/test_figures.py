"""From the times of answers to rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.figures import Figures, RunFailed
from tests.bench.scenarios import SCENARIOS
from tests.bench.sse_client import Answer

SCENARIO = replace(SCENARIOS["decode"], prompt_tokens=100, output_tokens=5)


def _answer(sent: float = 0.0, **changes: object) -> Answer:
    """The first token after half a second, four more in the second that follows."""
    times = [sent + 0.5, sent + 0.6, sent + 1.5]  # events may carry several tokens
    answer = Answer(sent=sent, event_times=times, ended=sent + 2.0, completion_tokens=5)
    for name, value in changes.items():
        setattr(answer, name, value)
    return answer


def test_rates_and_times() -> None:
    figures = Figures.of(SCENARIO, [_answer(0.0), _answer(2.0)])
    assert figures.output_rate == pytest.approx(10 / 4)
    assert figures.prompt_rate == pytest.approx(200)
    assert figures.first_token_ms == pytest.approx(500)
    assert figures.decode_rate == pytest.approx(4)
    assert figures.gap_p50_ms == pytest.approx(900)
    assert figures.gap_p99_ms == pytest.approx(900)


def test_one_token_has_no_decode_rate() -> None:
    answer = Answer(sent=0.0, event_times=[0.5], ended=0.6, completion_tokens=1)
    figures = Figures.of(replace(SCENARIO, output_tokens=1), [answer])
    assert (figures.decode_rate, figures.gap_p50_ms, figures.gap_p99_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"error": "HTTP 500"}, "1 of 2 requests failed: HTTP 500"),
        ({"completion_tokens": 4}, "cut short"),
        ({"event_times": []}, "cut short"),
    ],
)
def test_a_run_with_an_answer_that_is_not_whole_has_no_figures(changes: dict[str, object], why: str) -> None:
    with pytest.raises(RunFailed, match=why):
        Figures.of(SCENARIO, [_answer(), _answer(**changes)])
