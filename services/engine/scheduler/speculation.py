"""One sequence's speculation: how many of its next tokens are guessed, and what is learned from their check.

A guess costs a row of a step and gains a token if it holds, which it only can if those before it do. So the n-th guess
is worth its row as long as the chance of one guess, to the power of n, is above the price of a row in tokens. Where
guesses rarely hold, or the batch is so large that rows are dear, that is not even so for the first one: then
none is made, and the poor record slowly fades until it is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.engine.scheduler.prompt_lookup import PromptLookup

_EXPECTED = 0.5  # chance of a guess about which nothing is known
_EXPECTED_WEIGHT = 2.0  # guesses that this counts for
_MEMORY = 0.85  # weight that a check keeps with each one after it
_FADING = 0.98  # with each step without a guess


class Speculation:
    """Made for a sequence that asks for it; lives as long as the sequence."""

    def __init__(self, max_guesses: int) -> None:
        """`max_guesses`: at a time, at least 1."""
        self.max_guesses = max_guesses
        self._lookup = PromptLookup()
        self._held = 0.0  # weighted number of guesses that held …
        self._checked = 0.0  # … among those whose predecessors held

    @property
    def chance(self) -> float:
        """How likely a guess holds if those before it do."""
        return (self._held + _EXPECTED * _EXPECTED_WEIGHT) / (self._checked + _EXPECTED_WEIGHT)

    def guess(self, prompt_ids: Sequence[int], output_ids: Sequence[int], limit: int, price: float) -> list[int]:
        """The next tokens as far as they are worth their rows, at most `limit`. price: of a row, in tokens."""
        limit = min(limit, self.max_guesses, self._num_worthwhile(price))
        guesses = self._lookup.follow(prompt_ids, output_ids, limit)
        if not guesses:
            self._held *= _FADING
            self._checked *= _FADING
        return guesses

    def note(self, num_guesses: int, num_held: int) -> None:
        """So many guesses were checked, and the first `num_held` of them were right."""
        self._held = self._held * _MEMORY + num_held
        self._checked = self._checked * _MEMORY + num_held + (num_held < num_guesses)

    def _num_worthwhile(self, price: float) -> int:
        chance = self.chance
        if chance <= price:
            return 0
        if price <= 0.0 or chance >= 1.0:
            return self.max_guesses
        return int(math.log(price) / math.log(chance))
