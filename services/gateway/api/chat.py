"""POST /v1/chat/completions: the request, the answer and its chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from services.gateway.api.answer_types import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    FunctionDelta,
    MessageDelta,
)
from services.gateway.api.answers import Answer, AnswerHead, ChoicesAnswer, Parsed
from services.gateway.api.choices import WholeChoice
from services.gateway.api.logprobs import chat_logprobs, prompt_logprobs
from services.gateway.api.parameters import (
    CompletionParameters,
    GenerationParameters,
    LogprobCount,
    OffValues,
    TokenCount,
    check_completion_parameters,
)
from services.gateway.api.reading import FormatSettings
from services.gateway.api.structured_output import extension_forms, output_form, response_forms
from services.gateway.api.tools import ToolChoice, ToolList, tool_use
from services.gateway.errors import invalid, unsupported
from services.gateway.parts import (
    Content,
    Part,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
)
from services.gateway.prompts import ChatPrompt
from services.gateway.scored import Scored
from services.gateway.validation import decode, refuse_later_features, require_depth

MAX_TEMPLATE_KWARGS_DEPTH = 32
ROLES = ("system", "developer", "user", "assistant", "tool", "function")  # the tokenizer refuses others


class ContentPart(msgspec.Struct):
    """A part of a message's content; only text is supported."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["text"]})]
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """What is checked of a message. The template gets it with all its fields."""

    role: Annotated[str, Meta(min_length=1, extra_json_schema={"enum": list(ROLES)})]
    content: str | list[ContentPart] | None = None


# JSON text: the template reads fields that nobody here knows.
_MESSAGE = {"$ref": "#/components/schemas/ChatMessage"}
_HAS_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
_HAS_CONTENT = {"required": ["content"], "properties": {"content": {"type": ["string", "array"], "items": _HAS_TEXT}}}
_IS_ASSISTANTS = {"properties": {"role": {"const": "assistant"}, "content": {"items": _HAS_TEXT}}}
_MESSAGES_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {"anyOf": [{**_MESSAGE, **_HAS_CONTENT}, {**_MESSAGE, **_IS_ASSISTANTS}]},
}
Messages = Annotated[msgspec.Raw, Meta(extra_json_schema=_MESSAGES_SCHEMA)]


class ChatRequest(CompletionParameters, kw_only=True):
    """The body of a chat completion."""

    off_values: ClassVar[OffValues] = {**CompletionParameters.off_values, "echo": (False,), "best_of": (1,)}

    messages: Messages
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    echo: Any = None
    best_of: Any = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

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
    messages: msgspec.Raw,
    add_generation_prompt: bool | None,
    chat_template_kwargs: dict[str, Any] | None,
    tools: str | None = None,
) -> ChatPrompt:
    """The prompt of checked messages. Raises ApiError 400."""
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
    return ChatPrompt(text, add_generation_prompt, template_kwargs_json(chat_template_kwargs), tools)


def template_kwargs_json(given: dict[str, Any] | None) -> str | None:
    """`chat_template_kwargs` as the tokenizer takes them. Raises ApiError 400."""
    require_depth(given, MAX_TEMPLATE_KWARGS_DEPTH, "chat_template_kwargs")
    return None if given is None else msgspec.json.encode(given).decode()


class ChatForm:
    """A choice of a chat: a message, and its deltas."""

    chunk_kind = "chat.completion.chunk"
    whole_kind = "chat.completion"

    def __init__(self, body: ChatRequest) -> None:
        self._has_logprobs = body.num_logprobs is not None
        self._num_prompt_logprobs = body.prompt_logprobs

    def opening(self, index: int) -> ChatChunkChoice:
        """The chunk that names the role, once and first."""
        return _chunk_choice(index, {"role": "assistant", "content": ""})

    def part(self, index: int, part: Part) -> ChatChunkChoice:
        """A chunk with one part."""
        return _chunk_choice(index, _message_delta(part))

    def finish(self, index: int, reason: str) -> ChatChunkChoice:
        """The choice's last chunk: an empty delta."""
        return _chunk_choice(index, {}, reason)

    def logprobs(self, scored: Scored) -> ChatLogprobs | None:
        """The choice's `logprobs`."""
        return chat_logprobs(scored.tokens) if self._has_logprobs else None

    def whole(self, choice: WholeChoice) -> ChatChoice:
        """The whole choice."""
        logprobs = self.logprobs(choice.scored)
        return {
            "index": choice.index,
            "message": _message(choice),
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }

    def answer_fields(self, choices: Sequence[WholeChoice]) -> Mapping[str, object]:
        """As in vLLM's API, the prompt's log-probabilities: all choices have the same prompt."""
        if self._num_prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(choices[0].scored.prompt_tokens, self._num_prompt_logprobs)}


def _chunk_choice(index: int, delta: MessageDelta, finish_reason: str | None = None) -> ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _message_delta(part: Part) -> MessageDelta:
    match part:
        case Content():
            return {"content": part.text}
        case Reasoning():
            return {"reasoning_content": part.text}
        case ToolCallStart():
            function: FunctionDelta = {"name": part.name, "arguments": ""}
            return {"tool_calls": [{"index": part.call, "id": part.id, "type": "function", "function": function}]}
        case ToolCallArguments():
            return {"tool_calls": [{"index": part.call, "function": {"arguments": part.text}}]}


def _message(choice: WholeChoice) -> AssistantMessage:
    """Without tool calls `content` is a string, if an empty one; a message that only calls functions has null there."""
    text, reasoning, calls = choice.content, choice.reasoning, choice.tool_calls
    content = None if calls and not text else text
    message: AssistantMessage = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.pieces)}}
            for call in calls
        ]
    return message


class ChatDialect:
    """Chat completions, for the generation endpoint."""

    path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    renders_chat = True
    prompt_field = "messages"

    def __init__(self, formats: FormatSettings) -> None:
        self._formats = formats

    def parse(self, data: bytes) -> Parsed:
        """The checked body. Raises ApiError 400."""
        body = decode(_BODY, data)
        refuse_later_features(body, body.off_values)
        check_completion_parameters(body)
        if body.max_tokens == 0:
            raise invalid("max_tokens must be at least 1", "max_tokens")
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        tools = tool_use(body)
        prompt = chat_prompt(body.messages, body.add_generation_prompt, body.chat_template_kwargs, tools.json)
        form = tools.form_beside(output_form(response_forms(body.response_format), extension_forms(body)))
        return Parsed(body, prompt, form, partial(self._formats.reading, tools))

    def answer(self, head: AnswerHead, body: GenerationParameters) -> Answer:
        """What builds the answer."""
        assert isinstance(body, ChatRequest)
        return ChoicesAnswer(head, body.include_usage, ChatForm(body))
