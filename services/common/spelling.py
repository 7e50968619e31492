"""What a misspelt name was probably meant to be."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

_LEAST_LIKENESS = 0.75  # of 1; difflib's measure


def closest(name: str, known: Sequence[str]) -> str:
    """The known name that is most like `name`; empty if none is much like it."""
    return next(iter(get_close_matches(name, known, n=1, cutoff=_LEAST_LIKENESS)), "")
