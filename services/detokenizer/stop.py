"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Ends a text at the first stop string and never shows a part of it, however the text is cut into pushes.

    The stop string that is complete first wins, so that generation can end at that very character. Of several that are
    complete at the same character, the longest wins (the one that starts earliest).

    Without `include_match`, text that may be the beginning of a stop string is held back, and no more than that: the
    longest end of the text that begins some stop string. With it the match is shown and nothing is held back.

    All work is on the held text and the new text, in the searches of `str`.

    Raises ValueError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str], include_match: bool) -> None:
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self.include_match = include_match
        self._stops = tuple(dict.fromkeys(stops))
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._longest_tail = max((len(stop) - 1 for stop in self._stops), default=0)
        self._tail = ""  # the text's end that may begin a stop string

    @property
    def has_stops(self) -> bool:
        return bool(self._stops)

    @property
    def num_held(self) -> int:
        """Characters that were pushed and may not be shown yet."""
        return 0 if self.include_match else len(self._tail)

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Takes new text; returns the text that may be shown now and the stop string that is complete, if any.

        While not `armed`, stop strings that become complete are not matches; one that is complete later, in an armed
        push, is, and its beginning is held back as ever. After a match the matcher must not be used any more.
        """
        if not self._tail and self._first_chars.isdisjoint(text):
            return text, None  # the common case; also without stop strings
        seen = len(self._tail)
        shown = seen if self.include_match else 0
        text = self._tail + text
        match = self._find(text, seen) if armed else None
        if match is not None:
            start, end = match
            self._tail = ""
            return text[shown : end if self.include_match else start], text[start:end]
        start = self._find_beginning(text)
        self._tail = text[start:]
        return text[shown:] if self.include_match else text[:start], None

    def flush(self) -> str:
        """Ends the text: what was held back and never became a stop string."""
        tail, self._tail = self._tail, ""
        return "" if self.include_match else tail

    def _find(self, text: str, seen: int) -> tuple[int, int] | None:
        """Start and end of the match whose end lies beyond `seen`: the first to end, then the first to start."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                end = start + len(stop)
                if best is None or (end, start) < (best[1], best[0]):
                    best = start, end
        return best

    def _find_beginning(self, text: str) -> int:
        """Where the longest end of `text` starts that is a proper beginning of a stop string; len(text) if none is.

        The answer never moves back from push to push, so that over a whole text each place is rejected only once.
        """
        for start in range(max(0, len(text) - self._longest_tail), len(text)):
            if text[start] in self._first_chars:
                end = text[start:]
                if any(len(stop) > len(end) and stop.startswith(end) for stop in self._stops):
                    return start
        return len(text)
