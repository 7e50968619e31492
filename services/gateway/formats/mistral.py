"""Mistral's tool calls: `[TOOL_CALLS]` and a JSON array of calls, or `[TOOL_CALLS]name[ARGS]{…}` for each call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from services.gateway.formats.call_scanner import CallScanner, new_call_id
from services.gateway.formats.calls import ContentBetween, finish_reason
from services.gateway.formats.json_scanner import NotJson, ValueScanner
from services.gateway.formats.markers import partial_marker
from services.gateway.parts import Part, ToolCallArguments, ToolCallStart

MARKER, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][\w-]*)?\s*\[ARGS\]\s*(?=\{)")


class MistralReader:
    """Content up to the marker, calls behind it. What stands there and is no call is content, with the marker."""

    def __init__(self) -> None:
        self._held = ""
        self._content = ContentBetween()
        self._behind = False  # behind a marker
        self._in_array = False
        self._scanner: CallScanner | ValueScanner | None = None
        self._calls = 0

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        self._held += text
        parts: list[Part] = []
        while self._held:
            before = len(self._held), self._scanner
            parts += self._step()
            if (len(self._held), self._scanner) == before:
                break
        return parts

    def _step(self) -> list[Part]:
        match self._scanner:
            case CallScanner():
                return self._object(self._scanner)
            case ValueScanner():
                return self._arguments(self._scanner)
        return self._next_call() if self._behind else self._outside()

    def _outside(self) -> list[Part]:
        text, marker, rest = self._held.partition(MARKER)
        if marker:
            self._held, self._behind = rest, True
            return self._content.add(text)
        kept = partial_marker(text, MARKER)
        self._held = text[len(text) - kept :]
        return self._content.add(text[: len(text) - kept])

    def _next_call(self) -> list[Part]:
        text = self._held.lstrip(" \t\n\r,") if self._in_array else self._held.lstrip()
        if self._in_array:
            if text.startswith("]"):
                self._held, self._behind, self._in_array = text[1:], False, False
            elif text:
                self._held, self._scanner = text, CallScanner(self._calls)
            return []
        if text.startswith("[") and not any(mark.startswith(text[:6]) for mark in (MARKER, ARGS, CALL_ID)):
            self._held, self._in_array = text[1:], True
        elif named := _NAMED.match(text):
            self._held, self._scanner = text[named.end() :], ValueScanner()
            self._calls += 1
            return [ToolCallStart(self._calls - 1, new_call_id(), named[1])]
        return []

    def _object(self, scanner: CallScanner) -> list[Part]:
        read = scanner.text
        try:
            parts, length = scanner.feed(self._held)
        except NotJson:
            self._scanner, self._behind, self._in_array = None, False, False
            return self._content.add(MARKER + "[" + read)
        self._held = self._held[length:]
        if scanner.done:
            self._scanner, self._calls = None, self._calls + 1
        return parts

    def _arguments(self, scanner: ValueScanner) -> list[Part]:
        length = scanner.feed(self._held)
        piece, self._held = self._held[:length], self._held[length:]
        if scanner.done:
            self._scanner, self._behind = None, False
        return [ToolCallArguments(self._calls - 1, piece)] if piece else []

    def close(self) -> Sequence[Part]:
        """What was held back; the text has ended."""
        held, self._held = self._held, ""
        scanner, self._scanner = self._scanner, None
        if isinstance(scanner, CallScanner):
            if scanner.started:
                self._calls += 1
                return []
            held = MARKER + "[" + scanner.text + held
        elif self._behind and scanner is None and not self._in_array:
            held = MARKER + held
        parts = self._content.add(held)
        return parts if self._calls else [*parts, *self._content.end()]

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` where the text ended by itself and has calls."""
        return finish_reason(reason, self._calls)
