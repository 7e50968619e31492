"""The runs of a comparison, as lines of JSON, and what they come to side by side."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.scenarios import SCENARIOS, Scenario, Width

OURS = "Postroad"
# A run during which other programs used more than this many cores counts only where there is no better one.
MOST_FOREIGN_CORES = 0.15


@dataclass(frozen=True)
class Run:
    """One run of a scenario on one server. Runs of the same `turn` were neighbours in time."""

    model: str
    width: Width
    scenario: str
    peer: str
    weight_format: str
    turn: int
    value: float  # in the unit of the scenario's metric
    server_cores: float  # CPU seconds per second, as are the next two
    client_cores: float
    foreign_cores: float
    when: str  # UTC, ISO 8601
    bandwidth_share: float | None = None  # of a decode: bytes read per second ÷ the bandwidth measured just before it

    @property
    def contestant(self) -> str:
        return f"{self.peer} {self.weight_format}"

    @property
    def is_clean(self) -> bool:
        return self.foreign_cores <= MOST_FOREIGN_CORES


@dataclass(frozen=True)
class Comparison:
    """One row: every contestant's median, and ours beside the best peer."""

    scenario: Scenario
    width: Width
    medians: dict[str, float]
    is_clean: bool  # every run was
    best_peer: str | None
    ratio: float | None  # ours to the best peer: the median over the turns that both have
    bandwidth_share: float | None = None  # ours, where it was measured

    @property
    def goal(self) -> float:
        return self.scenario.goals[self.width]


def compare(scenario: Scenario, width: Width, runs: Iterable[Run]) -> Comparison:
    """The runs of one model, width and scenario."""
    every = list(runs)
    by_contestant: dict[str, list[Run]] = {}
    for run in every:
        by_contestant.setdefault(run.contestant, []).append(run)
    clean = {name: [run for run in some if run.is_clean] or some for name, some in by_contestant.items()}
    medians = {name: statistics.median(run.value for run in some) for name, some in clean.items()}
    ours = next((name for name in medians if name.startswith(f"{OURS} ")), None)
    peers = [name for name in medians if name != ours]
    order = max if scenario.metric.more_is_better else min
    best = order(peers, key=medians.__getitem__, default=None)
    return Comparison(
        scenario=scenario,
        width=width,
        medians=medians,
        is_clean=all(run.is_clean for run in every),
        best_peer=best,
        bandwidth_share=None if ours is None else _bandwidth_share(clean[ours]),
        ratio=None if ours is None or best is None else _ratio(scenario, clean[ours], clean[best]),
    )


def _ratio(scenario: Scenario, ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    """Of neighbours in time where there are any: the machine's speed changes from minute to minute."""
    by_turn = {run.turn: run.value for run in theirs}
    pairs = [(run.value, by_turn[run.turn]) for run in ours if run.turn in by_turn]
    if not pairs:
        pairs = [(statistics.median(r.value for r in ours), statistics.median(r.value for r in theirs))]
    return statistics.median(scenario.metric.ratio(a, b) for a, b in pairs)


def _bandwidth_share(ours: Sequence[Run]) -> float | None:
    shares = [run.bandwidth_share for run in ours if run.bandwidth_share is not None]
    return statistics.median(shares) if shares else None


def comparisons(runs: Sequence[Run], model: str, width: Width) -> list[Comparison]:
    """Every row of one table that has runs, in the scenarios' order."""
    rows = []
    for name, scenario in SCENARIOS.items():
        if found := [run for run in runs if (run.model, run.width, run.scenario) == (model, width, name)]:
            rows.append(compare(scenario, width, found))
    return rows


class RunLog:
    """A file of runs that grows with each one, so that nothing is lost when a comparison is cut short."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, run: Run) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(run)) + "\n")

    def read(self) -> list[Run]:
        """Every run so far."""
        if not self.path.exists():
            return []
        return [Run(**json.loads(line)) for line in self.path.read_text().splitlines()]
