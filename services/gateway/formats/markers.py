"""A marker in a text that comes in pieces."""

from __future__ import annotations


def partial_marker(text: str, marker: str) -> int:
    """How many characters at the text's end may be the beginning of the marker. A whole marker does not count."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


def certain(text: str, marker: str) -> tuple[str, str]:
    """Splits a text without the marker into what is certain and what may still become the marker.

    White space before a marker belongs to neither side, so that it waits, too.
    """
    sure = text[: len(text) - partial_marker(text, marker)].rstrip()
    return sure, text[len(sure) :]
