"""Tokens with their log-probabilities, where a request asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as text and as bytes. Meanings: `postroad.v1.TextToken`."""

    id: int
    text: str
    data: bytes

    @property
    def is_part(self) -> bool:
        """Whether the token is only a part of a character."""
        return bool(self.data) and self.text.encode() != self.data


@dataclass(frozen=True, slots=True)
class TopToken:
    """One of the most probable tokens at a place."""

    token: TokenText
    logprob: float


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of the prompt or the output."""

    token: TokenText
    logprob: float | None  # None for the prompt's first token: nothing is before it
    rank: int
    offset: int  # where it begins in the text, characters
    top: Sequence[TopToken]


@dataclass(slots=True)
class Scored:
    """The next tokens of a choice, and of its prompt."""

    tokens: list[ScoredToken] = field(default_factory=list)
    prompt_tokens: list[ScoredToken] = field(default_factory=list)

    def extend(self, later: Scored) -> None:
        """Adds those that follow."""
        self.tokens += later.tokens
        self.prompt_tokens += later.prompt_tokens
