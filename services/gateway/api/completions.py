"""POST /v1/completions: the request, the answer and its chunks."""

from __future__ import annotations

from typing import Any

import msgspec

from services.gateway.api.answers import AnswerHead, ChunkFields, finish_event, usage_fields
from services.gateway.api.parameters import OFF_VALUES, GenerationParameters, TokenId, check_parameters
from services.gateway.deltas import Ending
from services.gateway.errors import invalid, unsupported
from services.gateway.prompts import IdsPrompt, Prompt, TextPrompt
from services.gateway.sse import TextEventTemplate
from services.gateway.validation import decode, refuse_later_features

DEFAULT_MAX_TOKENS = 16  # OpenAI's

PromptField = str | list[str | TokenId | list[TokenId]]


class CompletionRequest(GenerationParameters, kw_only=True):
    """The body of a text completion."""

    prompt: PromptField | None = None
    add_special_tokens: bool | None = None

    @property
    def token_limit(self) -> int | None:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens


_BODY = msgspec.json.Decoder(CompletionRequest)


def text_prompt(prompt: PromptField | None, add_special_tokens: bool | None) -> Prompt:
    """The one prompt of a string, a list with one string, token ids, or a list with one list of ids.

    Raises ApiError 400.
    """
    if prompt is None:
        raise invalid("prompt is required: a string or an array of token ids", "prompt")
    given: object = prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise unsupported("prompt", "several prompts are not supported; send one per request")
        given = prompt[0]
    if not given:
        raise invalid("prompt must not be empty", "prompt")
    if isinstance(given, str):
        return TextPrompt(given, add_special_tokens)
    ids = given if isinstance(given, list) else []
    for index, token_id in enumerate(ids):
        if not isinstance(token_id, int):
            raise invalid(f"prompt[{index}] must be a token id as the entries before it", f"prompt[{index}]")
    return IdsPrompt(ids)


class CompletionAnswer:
    """Builds the answer to one text completion, whole or as events."""

    def __init__(self, head: AnswerHead, body: GenerationParameters) -> None:
        self._head = head
        self._chunk = ChunkFields(head, "text_completion", body.include_usage)
        self._text = TextEventTemplate(self._chunk.with_choice(_choice(TextEventTemplate.mark(), None)))

    def opening(self) -> bytes:
        """Nothing: a text completion has no role."""
        return b""

    def text(self, text: str) -> bytes:
        """The event with new text."""
        return self._text.fill(text)

    def finish(self, ending: Ending, timings: dict[str, float] | None) -> bytes:
        """The events after the last text."""
        return finish_event(self._chunk, _choice("", ending.finish_reason), ending, timings)

    def whole(self, text: str, ending: Ending, timings: dict[str, float] | None) -> bytes:
        """The answer as one JSON object."""
        choice = _choice(text, ending.finish_reason)
        answer = {**self._head.fields("text_completion"), "choices": [choice], **usage_fields(ending, timings)}
        return msgspec.json.encode(answer)


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


class CompletionDialect:
    """Text completions, for the generation endpoint."""

    path = "/v1/completions"
    id_prefix = "cmpl-"
    prompt_field = "prompt"

    def parse(self, data: bytes) -> tuple[GenerationParameters, Prompt]:
        """The checked body and its prompt. Raises ApiError 400."""
        body = decode(_BODY, data)
        refuse_later_features(body, OFF_VALUES)
        check_parameters(body)
        return body, text_prompt(body.prompt, body.add_special_tokens)

    def answer(self, head: AnswerHead, body: GenerationParameters) -> CompletionAnswer:
        """What builds the answer."""
        return CompletionAnswer(head, body)
