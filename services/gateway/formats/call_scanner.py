"""One tool call written as a JSON object: `{"name": …, "arguments": {…}}`, handed on as it comes."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from services.gateway.formats.json_scanner import NotJson, ValueScanner
from services.gateway.parts import Part, ToolCallArguments, ToolCallStart

# Where the name comes first, as in every format that models are taught, the arguments are streamed.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)')


def new_call_id() -> str:
    """An id for a tool call, in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


class CallScanner:
    """Reads one object. `call` is the number of the call in its choice.

    `done`: the object has ended. `started`: its ToolCallStart was handed out. Until then `text` is all that was read.
    """

    def __init__(self, call: int) -> None:
        self._call = call
        self._object = ValueScanner()
        self._arguments: ValueScanner | None = None
        self._quoted: str | None = None  # arguments written as a string with JSON in it, as far as they have come
        self.text = ""
        self.started = False

    @property
    def done(self) -> bool:
        return self._object.done

    def feed(self, text: str) -> tuple[list[Part], int]:
        """The parts that are certain now, and how many characters belong to the object.

        Raises NotJson when it is no call; nothing was handed out then.
        """
        length = self._object.feed(text)
        piece = text[:length]
        if self._arguments is not None:
            return self._more_arguments(piece), length
        self.text += piece
        if self.text.strip() and not self.text.lstrip().startswith("{"):
            raise NotJson("a call is an object")
        head = _HEAD.match(self.text)
        if head is not None:
            return self._begin(str(_loads(head[1])), self.text[head.end() :]), length
        return (self._at_once() if self.done else []), length

    def _begin(self, name: str, rest: str) -> list[Part]:
        self._arguments = ValueScanner()
        self._quoted = "" if rest[0] == '"' else None
        self.started = True
        return [ToolCallStart(self._call, new_call_id(), name), *self._more_arguments(rest)]

    def _more_arguments(self, text: str) -> list[Part]:
        assert self._arguments is not None
        if self._arguments.done:
            return []  # other members of the object
        piece = text[: self._arguments.feed(text)]
        if self._quoted is not None:
            self._quoted += piece
            piece = _unquoted(self._quoted) if self._arguments.done else ""
        return [ToolCallArguments(self._call, piece)] if piece else []

    def _at_once(self) -> list[Part]:
        """A call whose members stand in another order."""
        members = _loads(self.text)
        arguments = members.get("arguments", members.get("parameters", {}))
        if not isinstance(members.get("name"), str):
            raise NotJson("a call has a name")
        self.started = True
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return [ToolCallStart(self._call, new_call_id(), members["name"]), ToolCallArguments(self._call, text)]


def _loads(text: str) -> Any:
    """The value of JSON text. Raises NotJson for text that only looked like it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise NotJson("a call is JSON") from None


def _unquoted(text: str) -> str:
    try:
        return str(_loads(text))
    except NotJson:
        return text  # the model's own words
