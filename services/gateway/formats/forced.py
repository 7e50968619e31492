"""Tool calls that a grammar has forced: the text is JSON and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.formats.call_scanner import CallScanner, new_call_id
from services.gateway.formats.calls import finish_reason
from services.gateway.formats.json_scanner import NotJson
from services.gateway.parts import Content, Part, ToolCallArguments, ToolCallStart


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
    """The text is a JSON array of calls. From where it is not, which a grammar does not let happen, it is content."""

    def __init__(self) -> None:
        self._held = ""
        self._skipped = ""  # brackets, commas and white space behind the last call
        self._scanner: CallScanner | None = None
        self._calls = 0
        self._is_broken = False

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        self._held += text
        parts: list[Part] = []
        while self._held and not self._is_broken:
            if self._scanner is None:
                body = self._held.lstrip(" \t\n\r[],")
                self._skipped += self._held[: len(self._held) - len(body)]
                self._held = body
                if not body:
                    break
                self._scanner = CallScanner(self._calls)
            parts += self._call(self._scanner)
        if self._is_broken and self._held:
            parts.append(Content(self._held))
            self._held = ""
        return parts

    def _call(self, scanner: CallScanner) -> list[Part]:
        read = scanner.text
        try:
            parts, length = scanner.feed(self._held)
        except NotJson:
            self._is_broken, self._scanner = True, None
            self._held = self._skipped + read + self._held
            return []
        self._held = self._held[length:]
        if scanner.done:
            self._scanner, self._skipped, self._calls = None, "", self._calls + 1
        return parts

    def close(self) -> Sequence[Part]:
        """What is left is white space, or a call that was cut before its name."""
        if self._scanner is not None and self._scanner.started:
            self._calls += 1
        return ()

    def finish_reason(self, reason: str) -> str:
        """`tool_calls` where there are calls and the text was not cut."""
        return finish_reason(reason, self._calls)
