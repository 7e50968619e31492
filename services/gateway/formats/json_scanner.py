"""Where a JSON value ends, in a text that comes in pieces."""

from __future__ import annotations

_WHITE = " \t\n\r"


class NotJson(ValueError):
    """The text is not what was expected."""


class ValueScanner:
    """Finds the end of one JSON value. Looks at strings and brackets only: what is between them is the model's."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._is_open = False  # something of the value has come
        self.done = False

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the value; `done` tells whether it ends with them.

        A number or a word ends before the comma, bracket or white space behind it.
        """
        for index, character in enumerate(text):
            if self._in_string:
                self._in_a_string(character)
            elif character == '"':
                self._in_string = self._is_open = True
                continue
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                if self._depth == 0:
                    return self._ended(index)
                self._depth -= 1
            elif self._depth == 0 and character in _WHITE + ",":
                if self._is_open:
                    return self._ended(index)
                continue
            else:
                self._is_open = True
                continue
            self._is_open = True
            if self._depth == 0 and not self._in_string:
                return self._ended(index + 1)
        return len(text)

    def _in_a_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False

    def _ended(self, length: int) -> int:
        if not self._is_open:
            raise NotJson("a value is missing")
        self.done = True
        return length
