"""What a check found, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`passed` is None for what is only measured."""

    what: str
    found: str
    beside: str = ""  # what it is compared with
    passed: bool | None = None


def table(rows: Iterable[Row]) -> str:
    """As Markdown, the form in which docs/benchmarks.md keeps it."""
    verdicts = {None: "", True: "ok", False: "FAILED"}
    lines = ["| what | found | beside | |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.found} | {row.beside} | {verdicts[row.passed]} |" for row in rows]
    return "\n".join(lines)
