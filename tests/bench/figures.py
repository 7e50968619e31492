"""What the answers of one run come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.scenarios import Scenario
from tests.bench.sse_client import Answer


class RunFailed(Exception):
    """A run that did not bring what was asked for; its figures would mean nothing."""


@dataclass(frozen=True)
class Figures:
    """Rates are tokens per second, times milliseconds; medians over the requests unless said."""

    output_rate: float  # of all requests together, from the first one sent to the last one ended
    prompt_rate: float  # prompt tokens by the time to the first token
    first_token_ms: float
    decode_rate: float | None  # of a request after its first token; None where there is but one
    gap_p50_ms: float | None  # between two events, over all requests
    gap_p99_ms: float | None

    @classmethod
    def of(cls, scenario: Scenario, answers: Sequence[Answer]) -> Figures:
        """Raises RunFailed unless every answer is whole."""
        if failed := [answer.error or "cut short" for answer in answers if not _is_whole(scenario, answer)]:
            raise RunFailed(f"{len(failed)} of {len(answers)} requests failed: {failed[0][:500]}")
        wall = max(answer.ended for answer in answers) - min(answer.sent for answer in answers)
        first = statistics.median(answer.time_to_first_token for answer in answers)
        rates = [rate for answer in answers if (rate := _decode_rate(answer))]
        gaps = sorted(gap for answer in answers for gap in answer.gaps)
        return cls(
            output_rate=sum(answer.completion_tokens for answer in answers) / wall,
            prompt_rate=scenario.prompt_tokens / first,
            first_token_ms=first * 1e3,
            decode_rate=statistics.median(rates) if rates else None,
            gap_p50_ms=_percentile(gaps, 0.50),
            gap_p99_ms=_percentile(gaps, 0.99),
        )


def _is_whole(scenario: Scenario, answer: Answer) -> bool:
    return not answer.error and answer.completion_tokens == scenario.output_tokens and bool(answer.event_times)


def _decode_rate(answer: Answer) -> float | None:
    """Tokens per second after the first one, which came with the first event."""
    seconds = answer.event_times[-1] - answer.event_times[0]
    return (answer.completion_tokens - 1) / seconds if seconds > 0 and answer.completion_tokens > 1 else None


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """In milliseconds."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3 if ordered else None
