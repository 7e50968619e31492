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

    A stop string ends the text only if its last character comes with a token after the first `min_tokens`.
    After a match there is no more text: later pushes and `finish` yield nothing, so that tokens which were on their way
    do no harm.
    """

    def __init__(self, decoder: IncrementalDecoder, matcher: StopMatcher, min_tokens: int = 0) -> None:
        self._decoder = decoder
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._matched: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the output so far: those of all pushes' `Output.num_tokens`, and a stop token."""
        return self._num_tokens

    @property
    def num_held(self) -> int:
        """Characters that are complete and held back for a stop string."""
        return self._matcher.num_held

    def push(self, token_ids: Sequence[int]) -> Output:
        """Takes the next tokens. Raises UnknownTokenError for an id without a token."""
        if self._matched is not None:
            return Output("", 0, self._matched)
        if not self._matcher.has_stops:
            self._num_tokens += len(token_ids)
            return Output(self._decoder.push(token_ids), len(token_ids), None)
        return self._push_one_by_one(token_ids)

    def finish(self, stop_token: int | None = None) -> str:
        """Ends the text; returns what was held back. `stop_token`: the last token, if its id ended the request.

        Stop strings are not looked for any more: the request has ended for another reason.
        """
        if self._matched is not None:
            return ""
        text = self._matcher.flush()
        if stop_token is not None:
            self._num_tokens += 1
            if self._matcher.include_match:
                text += self._decoder.push((stop_token,))
        return text + self._decoder.flush()

    def _push_one_by_one(self, token_ids: Sequence[int]) -> Output:
        parts: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            new = self._decoder.push((token_id,))
            if not new:
                continue
            shown, self._matched = self._matcher.push(new, armed=self._num_tokens > self._min_tokens)
            parts.append(shown)
            if self._matched is not None:
                return Output("".join(parts), count, self._matched)
        return Output("".join(parts), len(token_ids), None)
