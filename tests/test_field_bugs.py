"""Every fault that docs/field-bugs.md lists has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def listed_numbers() -> set[int]:
    """The numbers in the tables of docs/field-bugs.md."""
    text = (ROOT / "docs" / "field-bugs.md").read_text()
    return {int(number) for number in re.findall(r"^\| (\d+) \|", text, flags=re.M)}


def numbers_in_tests() -> set[int]:
    """The numbers in the names of test functions and of their parameter sets."""
    runs = [
        function or parameters
        for path in (ROOT / "tests").rglob("test_*.py")
        for function, parameters in re.findall(
            r"def test_fieldbug((?:_\d\d)+)_|\"fieldbug((?:_\d\d)+)_", path.read_text()
        )
    ]
    return {int(number) for run in runs for number in run.strip("_").split("_")}


def test_every_listed_fault_has_a_test_that_names_it() -> None:
    assert len(listed_numbers()) > 30
    assert listed_numbers() - numbers_in_tests() == set()


def test_every_fault_that_a_test_names_is_listed() -> None:
    assert numbers_in_tests() - listed_numbers() == set()
