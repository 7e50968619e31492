"""Llama 3's tool calls in JSON: the whole answer is `{"name": …, "parameters": {…}}`, more of them after semicolons."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.formats.call_scanner import CallScanner
from services.gateway.formats.calls import PYTHON_TAG, finish_reason
from services.gateway.formats.json_scanner import NotJson
from services.gateway.parts import Content, Part


class Llama3JsonReader:
    """An answer that begins like a call is one, if it is one; any other is content.

    Between calls stand semicolons and white space; text behind them that is no call is content.
    """

    def __init__(self) -> None:
        self._held = ""  # what was not handed out, in case that it is content
        self._unread = ""
        self._scanner: CallScanner | None = None
        self._calls = 0
        self._is_content = False

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        if self._is_content:
            return [Content(text)]
        self._held += text
        self._unread += text
        parts: list[Part] = []
        while self._unread and not self._is_content:
            before = len(self._unread)
            parts += self._next_call() if self._scanner is None else self._in_call(self._scanner)
            if len(self._unread) == before and self._scanner is None:
                break
        return parts

    def _next_call(self) -> list[Part]:
        text = self._unread.lstrip(" \t\n\r;" if self._calls else None)
        if text.startswith(PYTHON_TAG):
            text = text[len(PYTHON_TAG) :].lstrip()
        elif text and PYTHON_TAG.startswith(text):
            return []
        if text.startswith("{"):
            self._unread, self._scanner = text, CallScanner(self._calls)
            return []
        return self._content() if text else []

    def _in_call(self, scanner: CallScanner) -> list[Part]:
        try:
            parts, length = scanner.feed(self._unread)
        except NotJson:
            return self._content()
        self._unread = self._unread[length:]
        if scanner.started:
            self._held = self._unread
        if scanner.done:
            self._scanner, self._calls = None, self._calls + 1
        return parts

    def _content(self) -> list[Part]:
        self._is_content = True
        held, self._held = self._held, ""
        return [Content(held)]

    def close(self) -> Sequence[Part]:
        """What was held back; the text has ended."""
        if self._scanner is not None and self._scanner.started:
            self._calls += 1
            return []
        left = self._held
        if self._is_content or not left or (self._calls and not left.strip(" \t\n\r;")):
            return []
        return self._content()

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` where the text ended by itself and has calls."""
        return finish_reason(reason, self._calls)
