"""Reads the pages of docs/: their sections and the tables in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

Row = dict[str, str]

_HEADING = re.compile(r"^#+ (.*)$", re.M)
_CELL = re.compile(r"(?<!\\)\|")


def section(page: str, heading: str) -> str:
    """The text below a heading of docs/`page`, up to the next heading of whatever level."""
    parts = _HEADING.split((DOCS / page).read_text())
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return texts[heading]


def tables(text: str) -> list[list[Row]]:
    """The Markdown tables of a text: rows as cells by column name."""
    blocks = re.findall(r"(?:^\|.*\n)+", text if text.endswith("\n") else text + "\n", flags=re.M)
    return [_table(block) for block in blocks]


def table(page: str, heading: str) -> list[Row]:
    """The only table of a section."""
    (only,) = tables(section(page, heading))
    return only


def code(cell: str) -> str:
    """What a cell has in backticks; "" for an empty cell."""
    return cell.strip("`")


def codes(cell: str) -> list[str]:
    """Everything that a cell has in backticks."""
    return re.findall(r"`([^`]*)`", cell)


def by_code(rows: list[Row], column: str) -> dict[str, Row]:
    """Rows by the code in one of their columns, which must not occur twice."""
    keyed = {code(row[column]): row for row in rows}
    assert len(keyed) == len(rows), "an entry occurs twice"
    return keyed


def _table(block: str) -> list[Row]:
    head, _, *lines = [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in block.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]
