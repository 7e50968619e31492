"""Where one output stands in its grammar, and which tokens may come next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher

from services.engine.grammar.form import OutputForm
from services.engine.grammar.words import told
from services.engine.plan import TokenWords


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a state must know of the model's tokens."""

    size: int
    eos_token_ids: frozenset[int]
    special_ids: frozenset[int]  # tokens that are no text


class GrammarState:
    """Implements `OutputGrammar`. Used by one thread at a time."""

    def __init__(
        self, form: OutputForm, matcher: LLMatcher, vocabulary: Vocabulary, stop_token_ids: frozenset[int]
    ) -> None:
        """stop_token_ids: those that end the request, without the model's own where it ignores them."""
        self.form = form
        self.failure = ""
        # A stop id that is text stays the grammar's affair.
        self.ending_ids = vocabulary.eos_token_ids | (stop_token_ids & vocabulary.special_ids)
        self._ignored_ids = vocabulary.eos_token_ids - stop_token_ids
        self._matcher = matcher
        self._num_words = -(-vocabulary.size // 32)
        self._has_ended = False

    def masks(self, drafts: Sequence[int], may_end: Sequence[bool]) -> list[TokenWords]:
        """Never raises: a grammar that cannot go on says so in `failure`, and the masks are then of no use."""
        masks = [self._mask(may_end[0])]
        num_accepted = 0
        for draft, may_end_after in zip(drafts, may_end[1:], strict=True):
            if not _holds(masks[-1], draft):
                break  # whatever follows it is not used
            num_accepted += 1
            if self.accept(draft):
                break  # nothing follows it
            masks.append(self._mask(may_end_after))
        self.rollback(num_accepted)
        return masks + [self._everything()] * (len(may_end) - len(masks))

    def accept(self, token_id: int) -> bool:
        if token_id in self.ending_ids:
            self._has_ended = True
            return True
        if not self.failure and not self._matcher.consume_token(token_id):
            self.failure = self._reason() or f"the token {token_id} does not fit"
        return bool(self.failure) or self._matcher.is_stopped()

    def rollback(self, count: int) -> None:
        if count and self._has_ended:
            self._has_ended = False
            count -= 1
        if count and not self.failure:
            self._matcher.rollback(count)

    def _mask(self, may_end: bool) -> TokenWords:
        """What may come next."""
        mask: TokenWords = np.empty(self._num_words, np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            self.failure = self._reason() or "it is too complex"
            return self._everything()
        if not self._matcher.is_accepting():
            return mask
        _set(mask, self.ending_ids)
        without = mask.copy()
        _clear(without, self._ignored_ids if may_end else self.ending_ids)
        return without if without.any() else mask  # the latter where nothing but the end is left

    def _reason(self) -> str:
        """Why the matcher cannot go on, in its first line; more of them show its insides."""
        return told(self._matcher.get_error().partition("\n")[0])

    def _everything(self) -> TokenWords:
        return np.full(self._num_words, -1, np.int32)


def _holds(mask: TokenWords, token_id: int) -> bool:
    return bool(mask[token_id // 32] >> token_id % 32 & 1)


def _set(mask: TokenWords, ids: Iterable[int]) -> None:
    words = mask.view(np.uint32)
    for token_id in ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)


def _clear(mask: TokenWords, ids: Iterable[int]) -> None:
    words = mask.view(np.uint32)
    for token_id in ids:
        words[token_id // 32] &= ~np.uint32(1 << token_id % 32)
