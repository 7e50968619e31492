"""POST /v1/chat/completions: the request, the answer and its chunks."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from services.gateway.api.answers import Answer, AnswerHead, ChoicesAnswer
from services.gateway.api.choices import WholeChoice
from services.gateway.api.parameters import (
    OFF_VALUES,
    GenerationParameters,
    TokenCount,
    check_parameters,
)
from services.gateway.errors import invalid, unsupported
from services.gateway.parts import (
    Content,
    Part,
    PartReader,
    Reasoning,
    TextReader,
    ToolCallArguments,
    ToolCallStart,
)
from services.gateway.prompts import ChatPrompt
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


class ChatForm:
    """A choice of a chat: a message, and its deltas."""

    chunk_kind = "chat.completion.chunk"
    whole_kind = "chat.completion"

    def opening(self, index: int) -> dict[str, Any]:
        """The chunk that names the role, once and first."""
        return _chunk_choice(index, {"role": "assistant", "content": ""})

    def part(self, index: int, part: Part) -> dict[str, Any]:
        """A chunk with one part."""
        return _chunk_choice(index, _message_delta(part))

    def finish(self, index: int, reason: str) -> dict[str, Any]:
        """The choice's last chunk: an empty delta."""
        return _chunk_choice(index, {}, reason)

    def whole(self, choice: WholeChoice) -> dict[str, Any]:
        """The whole choice."""
        message = _message(choice)
        return {"index": choice.index, "message": message, "logprobs": None, "finish_reason": choice.finish_reason}


def _chunk_choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _message_delta(part: Part) -> dict[str, Any]:
    match part:
        case Content():
            return {"content": part.text}
        case Reasoning():
            return {"reasoning_content": part.text}
        case ToolCallStart():
            function = {"name": part.name, "arguments": ""}
            return {"tool_calls": [{"index": part.call, "id": part.id, "type": "function", "function": function}]}
        case ToolCallArguments():
            return {"tool_calls": [{"index": part.call, "function": {"arguments": part.text}}]}


def _message(choice: WholeChoice) -> dict[str, Any]:
    """Without tool calls `content` is a string, if an empty one; a message that only calls functions has null there."""
    text = "".join(choice.content)
    content = None if choice.tool_calls and not text else text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = "".join(choice.reasoning)
    if choice.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.arguments)}}
            for _, call in sorted(choice.tool_calls.items())
        ]
    return message


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

    def reader(self, _body: GenerationParameters) -> PartReader:
        """All text is content."""
        return TextReader()

    def answer(self, head: AnswerHead, body: GenerationParameters) -> Answer:
        """What builds the answer."""
        return ChoicesAnswer(head, body.include_usage, ChatForm())
