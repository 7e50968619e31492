"""Tokens with their log-probabilities, in step with the text that they make.

Offsets are characters of a request's whole text, an echoed prompt included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from services.detokenizer.pipeline import Output, TextPipeline
from services.detokenizer.token_texts import TokenTexts
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2

PROMPT_TOKENS_AT_ONCE = 1024  # in one message: 20 alternatives each are about a megabyte


class MissingLogprobs(RuntimeError):
    """The engine sent tokens without the log-probabilities that the request asked for."""


def scored_token(
    texts: TokenTexts, token_id: int, text_offset: int, scores: common_pb2.TokenLogprobs, index: int
) -> detokenizer_pb2.TextToken:
    """The token that `scores` has at `index`."""
    token, data = texts(token_id)
    message = detokenizer_pb2.TextToken(
        id=token_id,
        token=token,
        bytes=data,
        text_offset=text_offset,
        logprob=scores.logprobs[index],
        rank=scores.ranks[index],
    )
    first = index * scores.num_top
    for place in range(first, first + scores.num_top):
        top_id = scores.top_ids[place]
        token, data = texts(top_id)
        message.top.add(id=top_id, token=token, bytes=data, logprob=scores.top_logprobs[place])
    return message


class ScoredPipeline:
    """A TextPipeline that keeps its tokens' log-probabilities until the text that they begin may be shown.

    A token without text of its own (a part of a character, a special token that is left out) goes with the text after
    it. Tokens that begin where a stop string has cut the text, or behind, are dropped.
    """

    def __init__(self, pipeline: TextPipeline, texts: TokenTexts) -> None:
        self.cumulative_logprob = 0.0  # of the tokens that `num_tokens` counts
        self._pipeline = pipeline
        self._texts = texts
        self._held: deque[detokenizer_pb2.TextToken] = deque()
        self._ready: list[detokenizer_pb2.TextToken] = []

    def push(self, token_ids: Sequence[int], scores: common_pb2.TokenLogprobs | None) -> Output:
        """As `TextPipeline.push`. `scores` has an entry for each token, and maybe more."""
        total = Output("", 0, None)
        for index, token_id in enumerate(token_ids):
            self._hold(token_id, scores, index)
            output = self._pipeline.push((token_id,))
            self._show()
            total.text += output.text
            total.num_tokens += output.num_tokens
            if output.matched is not None:
                self._held.clear()
                total.matched = output.matched
                break
        return total

    def finish(self, stop_token: int | None, scores: common_pb2.TokenLogprobs | None) -> str:
        """As `TextPipeline.finish`. The last entry of `scores` is the stop token's."""
        if stop_token is not None:
            self._hold(stop_token, scores, -1)
        text = self._pipeline.finish(stop_token)
        self._ready.extend(self._held)
        self._held.clear()
        return text

    def take(self) -> list[detokenizer_pb2.TextToken]:
        """The tokens that may be shown since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def _hold(self, token_id: int, scores: common_pb2.TokenLogprobs | None, index: int) -> None:
        if scores is None or not -len(scores.logprobs) <= index < len(scores.logprobs):
            raise MissingLogprobs("the engine sent a token without its log-probability")
        message = scored_token(self._texts, token_id, self._pipeline.next_offset, scores, index % len(scores.logprobs))
        self.cumulative_logprob += message.logprob
        self._held.append(message)

    def _show(self) -> None:
        while self._held and self._held[0].text_offset < self._pipeline.num_shown:
            self._ready.append(self._held.popleft())


class PromptTokens:
    """The prompt's tokens as their log-probabilities come. The first token has none: nothing is before it."""

    def __init__(self, texts: TokenTexts, prompt_ids: Sequence[int], offsets: Sequence[int] | None) -> None:
        """`offsets`: of the prompt's tokens in an echoed text."""
        token, data = texts(prompt_ids[0])
        first = detokenizer_pb2.TextToken(id=prompt_ids[0], token=token, bytes=data)
        self._texts = texts
        self._prompt_ids = prompt_ids
        self._offsets = offsets
        self._num_scored = 1
        self._ready = deque([first])

    def __len__(self) -> int:
        """Tokens that wait to be taken."""
        return len(self._ready)

    def push(self, scores: common_pb2.TokenLogprobs) -> None:
        """Takes the scores of the next tokens."""
        for index in range(len(scores.logprobs)):
            position = self._num_scored
            offset = self._offsets[position] if self._offsets is not None else 0
            self._ready.append(scored_token(self._texts, self._prompt_ids[position], offset, scores, index))
            self._num_scored += 1

    def take(self) -> list[detokenizer_pb2.TextToken]:
        """The next tokens, as many as fit one message."""
        taken = list(islice(self._ready, PROMPT_TOKENS_AT_ONCE))
        for _ in taken:
            self._ready.popleft()
        return taken
