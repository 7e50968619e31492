"""What was said so far."""

from __future__ import annotations

from services.chat.client import Message


class Conversation:
    """The turns of a chat, below a system prompt that outlives a reset."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self._turns: list[Message] = []

    def messages(self, question: str) -> list[Message]:
        """What to send so that `question` is answered. It becomes part of the conversation by `add`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self._turns, {"role": "user", "content": question}]

    def add(self, question: str, answer: str) -> None:
        """A turn that took place. One without an answer did not: models expect the roles to alternate."""
        if answer:
            self._turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forgets all turns."""
        self._turns.clear()
