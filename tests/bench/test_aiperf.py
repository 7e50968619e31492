"""What aiperf is asked, and what its report says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.aiperf import arguments, figures
from tests.bench.figures import RunFailed
from tests.bench.scenarios import SCENARIOS

DECODE, PREFIX = SCENARIOS["decode"], SCENARIOS["prefix"]


def _value(flags: list[str], name: str) -> str:
    return flags[flags.index(name) + 1]


def _report(**changes: Any) -> dict[str, Any]:
    return {
        "request_count": {"avg": 2.0},
        "output_sequence_length": {"avg": 128.0},
        "time_to_first_token": {"p50": 64.0},
        "output_token_throughput": {"avg": 90.0},
        "inter_token_latency": {"p50": 10.0, "p99": 12.0},
    } | changes


def test_a_shared_prefix_is_part_of_the_prompt() -> None:
    flags = arguments(PREFIX, seed=3)
    assert int(_value(flags, "--isl")) + int(_value(flags, "--prompt-prefix-length")) == PREFIX.prompt_tokens
    assert _value(flags, "--concurrency") == "32"
    assert "--prompt-prefix-length" not in arguments(DECODE, seed=3)


def test_figures_of_a_report() -> None:
    found = figures(DECODE, _report())
    assert (found.output_rate, found.first_token_ms) == (90.0, 64.0)
    assert found.prompt_rate == pytest.approx(2000)
    assert found.decode_rate == pytest.approx(100)
    assert found.gap_p99_ms == 12.0


def test_a_report_without_gaps() -> None:
    report = _report()
    del report["inter_token_latency"]
    assert figures(DECODE, report).decode_rate is None


@pytest.mark.parametrize("changes", [{"request_count": {"avg": 1.0}}, {"output_sequence_length": {"avg": 127.5}}])
def test_a_report_of_unfinished_requests_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RunFailed):
        figures(DECODE, _report(**changes))
