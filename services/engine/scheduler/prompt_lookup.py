"""Guesses of the tokens that come next: those that followed when the last few stood in the text before.

No draft model: prompt and output are their own (A. Saxena, "Prompt Lookup Decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = (4, 2)  # of the n-grams that are looked up; the first one that is found decides


class PromptLookup:
    """An index of one sequence's n-grams, which grows with it."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        # Where an n-gram ended last, counting only places with a token behind them.
        self._ends: dict[tuple[int, ...], int] = {}

    def follow(self, prompt_ids: Sequence[int], output_ids: Sequence[int], limit: int) -> list[int]:
        """At most `limit` guesses; none where the last tokens are new. The sequence must have grown only at its end.

        Takes time in proportion to the tokens that were added since the last call.
        """
        self._take_up(prompt_ids, output_ids)
        start = self._find()
        if start is None or limit < 1:
            return []
        guesses: list[int] = []
        period = len(self._token_ids) - start
        while len(guesses) < limit:  # a text that repeats itself goes on with its own guesses
            guesses += (self._token_ids[start:] if not guesses else guesses[-period:])[: limit - len(guesses)]
        return guesses

    def _take_up(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        token_ids, ends = self._token_ids, self._ends
        known = len(token_ids)
        token_ids += prompt_ids[known:]
        token_ids += output_ids[max(known - len(prompt_ids), 0) :]
        for length in LENGTHS:
            for end in range(max(known, length), len(token_ids)):
                ends[tuple(token_ids[end - length : end])] = end

    def _find(self) -> int | None:
        """The place of the token that followed the last ones when they stood there before."""
        for length in LENGTHS:
            end = self._ends.get(tuple(self._token_ids[-length:]))
            if end is not None:
                return end
        return None
