"""Where the user's lines come from: a line editor on a terminal, plain lines from a pipe."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter


class LineSource(Protocol):
    """Gives one line after the other."""

    async def next_line(self) -> str | None:
        """The next line, or None at the end of input."""


class EditedLines:
    """Lines typed on a terminal, with history and completion of the commands. Ctrl-C clears the line, Ctrl-D ends."""

    def __init__(self, commands: Sequence[str]) -> None:
        completer = WordCompleter(list(commands), sentence=True)
        self._session: PromptSession[str] = PromptSession(
            "> ", completer=completer, complete_while_typing=False, reserve_space_for_menu=0
        )

    async def next_line(self) -> str | None:
        while True:
            try:
                return await self._session.prompt_async()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None


class PipedLines:
    """Lines of standard input."""

    async def next_line(self) -> str | None:
        line = await asyncio.to_thread(sys.stdin.readline)
        return line.rstrip("\n") if line else None


def lines_of_stdin(commands: Sequence[str]) -> LineSource:
    """The source that fits standard input."""
    return EditedLines(commands) if sys.stdin.isatty() else PipedLines()
