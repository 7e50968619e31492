"""POST /v1/chat/completions: the request, the answer and its chunks."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from services.gateway.api.answers import AnswerHead, ChunkFields, finish_event, usage_fields
from services.gateway.api.parameters import (
    OFF_VALUES,
    GenerationParameters,
    TokenCount,
    check_parameters,
)
from services.gateway.deltas import Ending
from services.gateway.errors import invalid, unsupported
from services.gateway.prompts import ChatPrompt
from services.gateway.sse import TextEventTemplate, event
from services.gateway.validation import decode, refuse_later_features, require_depth

MAX_TEMPLATE_KWARGS_DEPTH = 32


class ContentPart(msgspec.Struct):
    """A part of a message's content; only text is supported."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """What is checked of a message. The template gets it with all its fields."""

    role: Annotated[str, Meta(min_length=1)]
    content: str | list[ContentPart] | None = None


class ChatRequest(GenerationParameters, kw_only=True):
    """The body of a chat completion. `messages` stay JSON text: the template reads fields that nobody here knows."""

    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: TokenCount | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def token_limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


_BODY = msgspec.json.Decoder(ChatRequest)
_MESSAGES = msgspec.json.Decoder(list[ChatMessage])


def _check_content(content: str | list[ContentPart] | None, param: str) -> None:
    for index, part in enumerate(content if isinstance(content, list) else ()):
        where = f"{param}.content[{index}]"
        if part.type != "text":
            raise unsupported(f"{where}.type", f"{part.type!r} is not supported, only 'text' is")
        if part.text is None:
            raise invalid(f"{where}.text must be a string", f"{where}.text")


def chat_prompt(
    messages: msgspec.Raw | msgspec.UnsetType,
    add_generation_prompt: bool | None,
    chat_template_kwargs: dict[str, Any] | None,
) -> ChatPrompt:
    """The prompt of checked messages. Raises ApiError 400."""
    if messages is msgspec.UNSET:
        raise invalid("messages is required: an array of at least one message", "messages")
    json_text = bytes(messages)
    checked = decode(_MESSAGES, json_text, "messages")
    if not checked:
        raise invalid("messages must have at least one message", "messages")
    for index, message in enumerate(checked):
        _check_content(message.content, f"messages[{index}]")
    try:
        text = json_text.decode()
    except UnicodeDecodeError:  # in a field that only the template knows
        raise invalid("messages must be valid UTF-8", "messages") from None
    require_depth(chat_template_kwargs, MAX_TEMPLATE_KWARGS_DEPTH, "chat_template_kwargs")
    kwargs_json = None if chat_template_kwargs is None else msgspec.json.encode(chat_template_kwargs).decode()
    return ChatPrompt(text, add_generation_prompt, kwargs_json)


class ChatAnswer:
    """Builds the answer to one chat request, whole or as events."""

    def __init__(self, head: AnswerHead, body: GenerationParameters) -> None:
        self._head = head
        self._chunk = ChunkFields(head, "chat.completion.chunk", body.include_usage)
        self._text = TextEventTemplate(self._chunk.with_choice(_choice({"content": TextEventTemplate.mark()}, None)))

    def opening(self) -> bytes:
        """The event that names the role, once and first."""
        chunk = self._chunk.with_choice(_choice({"role": "assistant", "content": ""}, None))
        return event(msgspec.json.encode(chunk))

    def text(self, text: str) -> bytes:
        """The event with new text."""
        return self._text.fill(text)

    def finish(self, ending: Ending, timings: dict[str, float] | None) -> bytes:
        """The events after the last text."""
        return finish_event(self._chunk, _choice({}, ending.finish_reason), ending, timings)

    def whole(self, text: str, ending: Ending, timings: dict[str, float] | None) -> bytes:
        """The answer as one JSON object."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ending.finish_reason}
        answer = {**self._head.fields("chat.completion"), "choices": [choice], **usage_fields(ending, timings)}
        return msgspec.json.encode(answer)


def _choice(delta: dict[str, str], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


class ChatDialect:
    """Chat completions, for the generation endpoint."""

    path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    prompt_field = "messages"

    def parse(self, data: bytes) -> tuple[GenerationParameters, ChatPrompt]:
        """The checked body and its prompt. Raises ApiError 400."""
        body = decode(_BODY, data)
        refuse_later_features(body, OFF_VALUES)
        check_parameters(body)
        return body, chat_prompt(body.messages, body.add_generation_prompt, body.chat_template_kwargs)

    def answer(self, head: AnswerHead, body: GenerationParameters) -> ChatAnswer:
        """What builds the answer."""
        return ChatAnswer(head, body)
