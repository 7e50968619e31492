"""Hermes' and Qwen's tool calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.formats.call_scanner import CallScanner
from services.gateway.formats.calls import ContentBetween, finish_reason
from services.gateway.formats.json_scanner import NotJson
from services.gateway.formats.markers import partial_marker
from services.gateway.parts import Part

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader:
    """Reads content and calls. What stands in the tags and is no call is content, with its tags."""

    def __init__(self) -> None:
        self._held = ""
        self._content = ContentBetween()
        self._scanner: CallScanner | None = None
        self._calls = 0

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        self._held += text
        parts: list[Part] = []
        while self._held:
            before = len(self._held), self._scanner
            parts += self._outside() if self._scanner is None else self._inside(self._scanner)
            if (len(self._held), self._scanner) == before:
                break
        return parts

    def _outside(self) -> list[Part]:
        text, tag, rest = self._held.partition(OPEN)
        if tag:
            self._held, self._scanner = rest, CallScanner(self._calls)
            return self._content.add(text)
        kept = partial_marker(text, OPEN)
        self._held = text[len(text) - kept :]
        return self._content.add(text[: len(text) - kept])

    def _inside(self, scanner: CallScanner) -> list[Part]:
        if scanner.done:
            return self._to_the_closing_tag()
        read = scanner.text
        try:
            parts, length = scanner.feed(self._held)
        except NotJson:
            self._scanner = None
            return self._content.add(OPEN + read)
        self._held = self._held[length:]
        return parts

    def _to_the_closing_tag(self) -> list[Part]:
        """A model may leave the tag out: then another call, or content, follows."""
        text = self._held.lstrip()
        if text.startswith(CLOSE):
            self._end_call(text[len(CLOSE) :])
        elif text and not CLOSE.startswith(text):
            self._end_call(text)
        return []

    def _end_call(self, rest: str) -> None:
        self._held, self._scanner, self._calls = rest, None, self._calls + 1

    def close(self) -> Sequence[Part]:
        """What was held back; the text has ended."""
        held, self._held = self._held, ""
        scanner, self._scanner = self._scanner, None
        if scanner is None:
            parts = self._content.add(held)
        elif scanner.started:
            self._calls += 1
            return []
        else:
            parts = self._content.add(OPEN + scanner.text + held)
        return parts if self._calls else [*parts, *self._content.end()]

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` where the text ended by itself and has calls."""
        return finish_reason(reason, self._calls)
