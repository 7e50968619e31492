"""Log-probabilities in the forms of the HTTP API: OpenAI's two, and vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.api.answer_types import (
    AlternativeToken,
    ChatLogprobs,
    ChatToken,
    CompletionLogprobs,
    PromptLogprobs,
    PromptToken,
)
from services.gateway.scored import ScoredToken, TokenText, TopToken

_LOWEST = -9999.0  # stands for minus infinity, which JSON does not have; as in OpenAI's API


def chat_logprobs(tokens: Sequence[ScoredToken]) -> ChatLogprobs:
    """`logprobs` of a chat's choice."""
    return {"content": [_chat_token(scored) for scored in tokens], "refusal": None}


def _chat_token(scored: ScoredToken) -> ChatToken:
    assert scored.logprob is not None, "something is before each token of an output"
    top = [_alternative(top.token, top.logprob) for top in scored.top]
    return {**_alternative(scored.token, scored.logprob), "top_logprobs": top}


def _alternative(token: TokenText, logprob: float) -> AlternativeToken:
    return {"token": token.text, "logprob": _finite(logprob), "bytes": list(token.data)}


def completion_logprobs(tokens: Sequence[ScoredToken], num_top: int) -> CompletionLogprobs:
    """`logprobs` of a text completion's choice. The chosen token is always among `top_logprobs`."""
    return {
        "text_offset": [scored.offset for scored in tokens],
        "token_logprobs": [None if scored.logprob is None else _finite(scored.logprob) for scored in tokens],
        "tokens": [_key(scored.token) for scored in tokens],
        "top_logprobs": [_top_by_text(scored, num_top) for scored in tokens],
    }


def _top_by_text(scored: ScoredToken, num_top: int) -> dict[str, float] | None:
    if scored.logprob is None:
        return None
    by_text: dict[str, float] = {}
    for top in (*scored.top[:num_top], TopToken(scored.token, scored.logprob)):
        by_text.setdefault(_key(top.token), _finite(top.logprob))  # of tokens with equal text the most probable one
    return by_text


def _key(token: TokenText) -> str:
    """A token's text; of a part of a character its bytes, in OpenAI's way."""
    return f"bytes:{token.text}" if token.is_part else token.text


def prompt_logprobs(tokens: Sequence[ScoredToken], num_top: int) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`: for each prompt token null or an object by token id, the token itself always in it."""
    return [_prompt_token(scored, num_top) for scored in tokens]


def _prompt_token(scored: ScoredToken, num_top: int) -> dict[str, PromptToken] | None:
    if scored.logprob is None:
        return None
    entries: dict[str, PromptToken] = {
        str(top.token.id): {"logprob": _finite(top.logprob), "rank": rank, "decoded_token": top.token.text}
        for rank, top in enumerate(scored.top[:num_top], start=1)
    }
    own: PromptToken = {"logprob": _finite(scored.logprob), "rank": scored.rank, "decoded_token": scored.token.text}
    return {str(scored.token.id): own} | entries


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)
