"""The chat's loop: read a line, obey it or stream the answer to it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing
from typing import TextIO

from services.chat.client import ChatClient, ChatError
from services.chat.conversation import Conversation
from services.chat.lines import LineSource

COMMANDS = {
    "/reset": "forget the conversation",
    "/system": "TEXT: set the system prompt (without TEXT: none) and forget the conversation",
    "/help": "this list",
    "/quit": "leave (or Ctrl-D)",
}


class ChatSession:
    """One user at a terminal. Answers go to `out`, remarks and errors to `remarks`."""

    def __init__(self, client: ChatClient, model: str, lines: LineSource, out: TextIO, remarks: TextIO) -> None:
        self._client = client
        self._model = model
        self._lines = lines
        self._out = out
        self._remarks = remarks
        self._conversation = Conversation()
        self.failed = False  # an answer did not come, or not whole

    async def run(self) -> None:
        """Until /quit or the end of input."""
        while (line := await self._lines.next_line()) is not None:
            text = line.strip()
            if text == "/quit":
                return
            if text.startswith("/"):
                self._obey(text)
            elif text:
                await self._answer(text)

    def _obey(self, text: str) -> None:
        command, _, rest = text.partition(" ")
        match command:
            case "/reset":
                self._conversation.reset()
                self._remark("forgotten")
            case "/system":
                self._conversation = Conversation(rest.strip())
                self._remark("system prompt set" if rest.strip() else "no system prompt")
            case "/help":
                for name, meaning in COMMANDS.items():
                    self._remark(f"{name:8} {meaning}")
            case _:
                self._remark(f"no such command: {command}; /help lists them")

    async def _answer(self, question: str) -> None:
        """Streams the answer; Ctrl-C ends it, and what was said until then stays in the conversation."""
        said: list[str] = []
        loop = asyncio.get_running_loop()
        answering = asyncio.create_task(self._stream(question, said))
        loop.add_signal_handler(signal.SIGINT, answering.cancel)
        try:
            await asyncio.wait([answering])
        finally:
            loop.remove_signal_handler(signal.SIGINT)
        if said:
            self._show("\n")
        self._conversation.add(question, "".join(said))
        if answering.cancelled():
            self._remark("stopped")
        elif error := answering.exception():
            if not isinstance(error, ChatError):
                raise error
            self.failed = True
            self._remark(f"error: {error}")

    async def _stream(self, question: str, said: list[str]) -> None:
        async with aclosing(self._client.stream(self._model, self._conversation.messages(question))) as deltas:
            async for delta in deltas:
                said.append(delta)
                self._show(delta)

    def _show(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _remark(self, text: str) -> None:
        print(text, file=self._remarks, flush=True)
