"""Comparisons as Markdown, the form in which docs/benchmarks.md keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.results import OURS, Comparison
from tests.bench.scenarios import Scenario

NOTHING = "–"


def table(rows: Sequence[Comparison]) -> str:
    """One line per scenario; the best peer of each is in bold. Decodes say what part of the bandwidth they use."""
    names = sorted({name for row in rows for name in row.medians}, key=lambda name: (not name.startswith(OURS), name))
    lines = [_line(["", *names, "ours ÷ best peer", "goal", "of the bandwidth"]), _line(["---"] * (len(names) + 4))]
    for row in rows:
        cells = [_value(row, name) for name in names]
        lines.append(_line([_title(row.scenario), *cells, _ratio(row), f"{row.goal:g}", _share(row)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _title(scenario: Scenario) -> str:
    return f"{scenario.title}, {scenario.metric.unit}"


def _value(row: Comparison, name: str) -> str:
    if name not in row.medians:
        return NOTHING
    value = row.medians[name]
    text = f"{value:.0f}" if value >= 200 else f"{value:.1f}"
    return f"**{text}**" if name == row.best_peer else text


def _share(row: Comparison) -> str:
    return NOTHING if row.bandwidth_share is None else f"{row.bandwidth_share:.0%}"


def _ratio(row: Comparison) -> str:
    """A tilde where other programs disturbed a run."""
    if row.ratio is None:
        return NOTHING
    return ("" if row.is_clean else "~") + f"{row.ratio:.2f}"
