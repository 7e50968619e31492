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
        self._skipped = ""  # the marker and what followed it up to a call; once there was one, what followed that
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
            self._held, self._behind, self._skipped = rest, True, MARKER
            return self._content.add(text)
        kept = partial_marker(text, MARKER)
        self._held = text[len(text) - kept :]
        return self._content.add(text[: len(text) - kept])

    def _next_call(self) -> list[Part]:
        if self._in_array:
            return self._next_object()
        text = self._held.lstrip()
        if text.startswith("[") and not any(mark.startswith(text[:6]) for mark in (MARKER, ARGS, CALL_ID)):
            self._skip_to(text[1:])
            self._in_array = True
        elif named := _NAMED.match(text):
            self._held, self._scanner = text[named.end() :], ValueScanner()
            self._calls += 1
            return [ToolCallStart(self._calls - 1, new_call_id(), named[1])]
        return []

    def _next_object(self) -> list[Part]:
        self._skip_to(self._held.lstrip(" \t\n\r,"))
        if self._held.startswith("]"):
            self._skip_to(self._held[1:])
            return self._leave_array(self._of_no_call())
        if self._held:
            self._scanner = CallScanner(self._calls)
        return []

    def _skip_to(self, rest: str) -> None:
        self._skipped += self._held[: len(self._held) - len(rest)]
        self._held = rest

    def _of_no_call(self) -> str:
        """What was skipped, if no call has come since the marker; white space and brackets of calls are no content."""
        return self._skipped if self._skipped.startswith(MARKER) else ""

    def _leave_array(self, content: str) -> list[Part]:
        self._scanner, self._behind, self._in_array = None, False, False
        return self._content.add(content)

    def _object(self, scanner: CallScanner) -> list[Part]:
        read = scanner.text
        try:
            parts, length = scanner.feed(self._held)
        except NotJson:
            return self._leave_array(self._skipped + read)
        self._held = self._held[length:]
        if scanner.done:
            self._scanner, self._calls, self._skipped = None, self._calls + 1, ""
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
            held = self._skipped + scanner.text + held
        elif self._behind and scanner is None:
            held = self._of_no_call() + held
        parts = self._content.add(held)
        return parts if self._calls else [*parts, *self._content.end()]

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` where the text ended by itself and has calls."""
        return finish_reason(reason, self._calls)
