"""Medians, best peers and ratios of runs that took turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.results import Run, RunLog, compare, comparisons
from tests.bench.scenarios import SCENARIOS

DECODE, FIRST_TOKEN = SCENARIOS["decode"], SCENARIOS["first-token"]
RUN = Run(
    model="m",
    width="bf16",
    scenario="decode",
    peer="Postroad",
    weight_format="bf16",
    turn=0,
    value=100.0,
    server_cores=2.0,
    client_cores=0.01,
    foreign_cores=0.0,
    when="2026-11-29T21:00:00+00:00",
)


def _runs(peer: str, *values: float, foreign: float = 0.0) -> list[Run]:
    return [replace(RUN, peer=peer, turn=turn, value=value, foreign_cores=foreign) for turn, value in enumerate(values)]


def test_the_best_peer_is_the_fastest_median() -> None:
    row = compare(DECODE, "bf16", _runs("Postroad", 100) + _runs("A", 50, 90, 50) + _runs("B", 60, 60, 61))
    assert row.best_peer == "B bf16"
    assert row.medians == {"Postroad bf16": 100, "A bf16": 50, "B bf16": 60}
    assert row.goal == DECODE.goals["bf16"]


def test_less_time_is_better() -> None:
    runs = [replace(run, scenario="first-token") for run in _runs("Postroad", 80) + _runs("A", 100) + _runs("B", 90)]
    row = compare(FIRST_TOKEN, "bf16", runs)
    assert (row.best_peer, row.ratio) == ("B bf16", pytest.approx(90 / 80))


def test_the_ratio_is_that_of_neighbours_in_time() -> None:
    """Between the turns the machine became twice as fast."""
    row = compare(DECODE, "bf16", _runs("Postroad", 120, 240, 250) + _runs("A", 100, 200, 200))
    assert row.ratio == pytest.approx(1.2)


def test_without_common_turns_the_medians_are_compared() -> None:
    later = [replace(run, turn=run.turn + 10) for run in _runs("A", 50, 50)]
    assert compare(DECODE, "bf16", _runs("Postroad", 100, 100) + later).ratio == pytest.approx(2)


def test_the_share_of_the_bandwidth_is_that_of_our_runs() -> None:
    ours = [
        replace(run, bandwidth_share=share)
        for run, share in zip(_runs("Postroad", 9, 9, 9), (0.9, 0.8, 0.7), strict=True)
    ]
    theirs = [replace(run, bandwidth_share=0.2) for run in _runs("A", 5)]
    assert compare(DECODE, "bf16", ours + theirs).bandwidth_share == pytest.approx(0.8)
    assert compare(DECODE, "bf16", _runs("Postroad", 9)).bandwidth_share is None


def test_disturbed_runs_count_only_where_there_are_no_others() -> None:
    disturbed = _runs("Postroad", 10, foreign=0.5)
    row = compare(DECODE, "bf16", disturbed + _runs("Postroad", 100) + _runs("A", 50, foreign=0.5))
    assert row.medians == {"Postroad bf16": 100, "A bf16": 50}
    assert not row.is_clean
    assert compare(DECODE, "bf16", _runs("Postroad", 100)).is_clean


def test_without_peers_or_without_us_there_is_no_ratio() -> None:
    assert compare(DECODE, "bf16", _runs("Postroad", 100)).ratio is None
    alone = compare(DECODE, "bf16", _runs("A", 100))
    assert (alone.ratio, alone.best_peer) == (None, "A bf16")


def test_a_log_keeps_every_run(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "made" / "runs.jsonl")
    assert log.read() == []
    for run in _runs("A", 1, 2):
        log.append(run)
    assert log.read() == _runs("A", 1, 2)


def test_rows_are_those_that_have_runs_in_the_order_of_the_scenarios() -> None:
    runs = [replace(RUN, scenario="streams8"), RUN, replace(RUN, width="8-bit"), replace(RUN, model="other")]
    assert [row.scenario.name for row in comparisons(runs, "m", "bf16")] == ["decode", "streams8"]
    assert comparisons(runs, "m", "4-bit") == []
