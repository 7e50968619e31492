"""Server-sent events, and a byte template for the events that carry text.

Making a chunk is the gateway's work per token. All that changes between two chunks of an answer is the text, so the
rest is encoded once (measured: 0.2 µs against 5 µs for encoding an object).
"""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"


def event(json_text: bytes, name: str = "") -> bytes:
    """One event, named where the API names its events. JSON has no raw line ends, so that one data line is enough."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json_text + b"\n\n"


class TextEventTemplate:
    """An event whose JSON is fixed but for one string."""

    _MARK = "\x00text\x00"

    def __init__(self, chunk: object, name: str = "") -> None:
        head, tail = event(msgspec.json.encode(chunk), name).split(msgspec.json.encode(self._MARK))
        self._head, self._tail = head, tail

    @classmethod
    def mark(cls) -> str:
        """What stands in `chunk` at the text's place, exactly once."""
        return cls._MARK

    def fill(self, text: str) -> bytes:
        """The event with `text` at the mark's place."""
        return self._head + msgspec.json.encode(text) + self._tail
