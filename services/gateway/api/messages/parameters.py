"""A message's parameters in the terms of every generation."""

from __future__ import annotations

from services.gateway.api.parameters import GenerationParameters


class MessagesParameters(GenerationParameters, kw_only=True):
    """`omits_thinking`: thinking is generated, and not shown. `fills_window`: less than max_tokens was left for it."""

    max_tokens: int
    omits_thinking: bool = False
    fills_window: bool = False

    @property
    def token_limit(self) -> int | None:
        return None if self.fills_window else self.max_tokens

    def limit_to(self, room: int) -> None:
        """Asks for as much as fits where max_tokens do not."""
        self.fills_window = room < self.max_tokens
