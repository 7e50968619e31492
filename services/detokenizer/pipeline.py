"""One request's way from token ids to shown text: incremental decoding, then stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.detokenizer.decode import IncrementalDecoder
from services.detokenizer.stop import StopMatcher


@dataclass(slots=True)
class Output:
    """What a push yields."""

    text: str  # may be shown now
    num_tokens: (
        int  # of the pushed tokens, those that belong to the output: all, or up to the one that completed a match
    )
    matched: str | None  # the stop string that ended the text


class TextPipeline:
    """The text of one request.

    `push` takes every generated token except one that ended the request by its id (an end-of-sequence id or one of
    stop_token_ids): that one goes to `finish`, which shows it only if the matcher includes matches.

    Places in the text are counted in characters. With `note_offsets` the place where each token begins is kept for
    `take_offsets`.

    A stop string ends the text only if its last character comes with a token after the first `min_tokens`.
    After a match there is no more text: later pushes and `finish` yield nothing, so that tokens which were on their way
    do no harm.
    """

    def __init__(
        self,
        decoder: IncrementalDecoder,
        matcher: StopMatcher,
        min_tokens: int = 0,
        *,
        num_shown: int = 0,
        note_offsets: bool = False,
    ) -> None:
        """`num_shown`: characters of the text that were there before, an echoed prompt's."""
        self.num_shown = num_shown  # characters that may be shown
        self._decoder = decoder
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._matched: str | None = None
        self._offsets: list[int] | None = [] if note_offsets else None

    @property
    def num_tokens(self) -> int:
        """Tokens of the output so far: those of all pushes' `Output.num_tokens`, and a stop token."""
        return self._num_tokens

    @property
    def next_offset(self) -> int:
        """Where the next token's text begins."""
        return self.num_shown + self._matcher.num_held

    def take_offsets(self) -> list[int]:
        """Where the tokens begin that `num_tokens` has counted since the last call; empty unless they are noted."""
        taken = self._offsets or []
        if self._offsets is not None:
            self._offsets = []
        return taken

    def push(self, token_ids: Sequence[int]) -> Output:
        """Takes the next tokens."""
        if self._matched is not None:
            return Output("", 0, self._matched)
        if self._matcher.has_stops or self._offsets is not None:
            return self._push_one_by_one(token_ids)
        self._num_tokens += len(token_ids)
        text = self._decoder.push(token_ids)
        self.num_shown += len(text)
        return Output(text, len(token_ids), None)

    def finish(self, stop_token: int | None = None) -> str:
        """Ends the text; returns what was held back. `stop_token`: the last token, if its id ended the request.

        Stop strings are not looked for any more: the request has ended for another reason.
        """
        if self._matched is not None:
            return ""
        if stop_token is not None:
            self._count_token()
        text = self._matcher.flush()
        if stop_token is not None and self._matcher.include_match:
            text += self._decoder.push((stop_token,))
        return text + self._decoder.flush()

    def _push_one_by_one(self, token_ids: Sequence[int]) -> Output:
        parts: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            self._count_token()
            new = self._decoder.push((token_id,))
            if not new:
                continue
            shown, self._matched = self._matcher.push(new, armed=self._num_tokens > self._min_tokens)
            parts.append(shown)
            self.num_shown += len(shown)
            if self._matched is not None:
                return Output("".join(parts), count, self._matched)
        return Output("".join(parts), len(token_ids), None)

    def _count_token(self) -> None:
        self._num_tokens += 1
        if self._offsets is not None:
            self._offsets.append(self.next_offset)
