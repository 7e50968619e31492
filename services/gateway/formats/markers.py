"""Markers in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def partial_marker(text: str, markers: Sequence[str]) -> int:
    """How many characters at the text's end may be the beginning of a marker. A whole marker does not count."""
    longest = max(map(len, markers)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(len(marker) > length and marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


def certain(text: str, markers: Sequence[str]) -> tuple[str, str]:
    """Splits a text without a whole marker into what is certain and what may still become a marker.

    White space before a marker belongs to neither side, so that it waits, too.
    """
    sure = text[: len(text) - partial_marker(text, markers)].rstrip()
    return sure, text[len(sure) :]
