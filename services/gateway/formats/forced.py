"""Tool calls that a grammar has forced: the text is JSON and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.formats.call_scanner import CallScanner, new_call_id
from services.gateway.formats.calls import TOOL_CALLS
from services.gateway.parts import Part, ToolCallArguments, ToolCallStart


class NamedCallReader:
    """The text is the arguments of a call of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        arguments = ToolCallArguments(0, text)
        if self._begun:
            return [arguments]
        self._begun = True
        return [ToolCallStart(0, new_call_id(), self._name), arguments]

    def close(self) -> Sequence[Part]:
        """Nothing is held back."""
        return ()

    def finish_reason(self, reason: str) -> str:
        """As OpenAI's: `stop` after a function that the request named."""
        return reason


class CallArrayReader:
    """The text is a JSON array of calls."""

    def __init__(self) -> None:
        self._held = ""
        self._scanner: CallScanner | None = None
        self._calls = 0

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        self._held += text
        parts: list[Part] = []
        while self._held:
            if self._scanner is None:
                self._held = self._held.lstrip(" \t\n\r[],")
                if not self._held:
                    break
                self._scanner = CallScanner(self._calls)
                self._calls += 1
            more, length = self._scanner.feed(self._held)
            parts += more
            self._held = self._held[length:]
            if self._scanner.done:
                self._scanner = None
        return parts

    def close(self) -> Sequence[Part]:
        """What is left is white space, or a call that was cut before its name."""
        return ()

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` where the array is complete."""
        return TOOL_CALLS if reason == "stop" else reason
