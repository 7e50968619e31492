"""What the readers of tool calls share: content between the calls, and how a choice with calls ends."""

from __future__ import annotations

from services.gateway.parts import Content, Part

TOOL_CALLS = "tool_calls"
PYTHON_TAG = "<|python_tag|>"  # Llama's, before a call in either of its formats


class ContentBetween:
    """Content beside tool calls: white space before, between and after calls is none."""

    def __init__(self) -> None:
        self._white = ""  # comes out before the next text
        self._begun = False

    def add(self, text: str) -> list[Part]:
        """Content that is certain."""
        body = text.strip()
        if not body:
            self._white += text
            return []
        lead = text[: len(text) - len(text.lstrip())]
        white, self._white = self._white + lead, text[len(text.rstrip()) :]
        before = white if self._begun else ""
        self._begun = True
        return [Content(before + body)]

    def end(self) -> list[Part]:
        """White space at the end of a text without calls belongs to it."""
        white, self._white = self._white, ""
        return [Content(white)] if white else []


def finish_reason(reason: str, calls: int) -> str:
    """OpenAI's word for the end of a choice with so many calls. One that was cut stays `length`."""
    return TOOL_CALLS if calls and reason == "stop" else reason
