"""The two endpoints: a dialect of the generation endpoint, and one that counts."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from services.gateway.api.answers import Answer, AnswerHead, Parsed
from services.gateway.api.endpoint import Endpoint, Exchange
from services.gateway.api.messages.answer import MessagesAnswer
from services.gateway.api.messages.answer_types import CountedTokens
from services.gateway.api.messages.conversation import messages_json
from services.gateway.api.messages.parameters import MessagesParameters
from services.gateway.api.messages.request import (
    MessagesRequest,
    PromptFields,
    Thinking,
    ThinkingDisabled,
    ThinkingEnabled,
)
from services.gateway.api.messages.tools import AnyChoice, NamedChoice, tool_use
from services.gateway.api.parameters import GenerationParameters, check_parameters
from services.gateway.api.reading import FormatSettings
from services.gateway.api.structured_output import output_form, typed_forms
from services.gateway.api.tool_use import ToolUse
from services.gateway.errors import ApiError, invalid
from services.gateway.forms import OutputForm
from services.gateway.gateway import Gateway
from services.gateway.prompts import ChatPrompt
from services.gateway.validation import decode, refuse_later_features

_MESSAGES = msgspec.json.Decoder(MessagesRequest)
_COUNT = msgspec.json.Decoder(PromptFields)


class MessagesDialect:
    """Messages, for the generation endpoint."""

    path = "/v1/messages"
    id_prefix = "msg_"
    renders_chat = True
    prompt_field = "messages"

    def __init__(self, formats: FormatSettings) -> None:
        self._formats = formats

    def parse(self, data: bytes) -> Parsed:
        """The checked body. Raises ApiError 400."""
        body = decode(_MESSAGES, data)
        _refuse_features(body)
        _check_thinking(body)
        tools = tool_use(body.tools or (), body.tool_choice)
        parameters = _parameters(body)
        check_parameters(parameters)
        form = tools.form_beside(_output_form(body))
        return Parsed(parameters, _prompt(body, tools), form, partial(self._formats.reading, tools))

    def answer(self, head: AnswerHead, body: GenerationParameters) -> Answer:
        """What builds the answer."""
        assert isinstance(body, MessagesParameters)
        return MessagesAnswer(head, body)


class CountTokensEndpoint(Endpoint):
    """Answers from the tokenizer alone."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "/v1/messages/count_tokens", MessagesDialect.prompt_field)

    async def serve(self, exchange: Exchange) -> None:
        """Answers `{"input_tokens"}`."""
        body = decode(_COUNT, exchange.body)
        _refuse_features(body)
        prompt = _prompt(body, tool_use(body.tools or (), body.tool_choice))
        road = self._gateway.road
        await self._gateway.model(body.model, road.patience(exchange.context))
        [ids] = (await road.encode(prompt, exchange.context, exchange.record.times)).ids
        exchange.record.prompt_tokens = len(ids)
        answer: CountedTokens = {"input_tokens": len(ids)}
        await exchange.reply.json(msgspec.json.encode(answer))


def _refuse_features(body: PromptFields) -> None:
    if body.thread is not None:  # by the code at which clients go on without threads, sending the whole conversation
        message = "thread: not supported, nothing is stored here; send the whole conversation"
        raise ApiError(400, message, code="thread_unsupported_request", param="thread")
    refuse_later_features(body, body.off_values)


def _parameters(body: MessagesRequest) -> MessagesParameters:
    return MessagesParameters(
        model=body.model,
        stream=body.stream,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        seed=body.seed,
        priority=body.priority,
        cache_salt=body.cache_salt,
        omits_thinking=getattr(body.thinking, "display", None) == "omitted",
    )


def _check_thinking(body: MessagesRequest) -> None:
    if not isinstance(body.thinking, ThinkingEnabled):
        return
    if body.thinking.budget_tokens >= body.max_tokens:
        param = "thinking.budget_tokens"
        raise invalid(f"{param} must be less than max_tokens, {body.max_tokens}", param)
    if isinstance(body.tool_choice, AnyChoice | NamedChoice):
        raise invalid("tool_choice.type: a tool cannot be forced when thinking is enabled", "tool_choice.type")


def _prompt(body: PromptFields, tools: ToolUse) -> ChatPrompt:
    kwargs = _template_kwargs(body)
    kwargs_json = msgspec.json.encode(kwargs).decode() if kwargs else None
    return ChatPrompt(messages_json(body.system, body.messages), None, kwargs_json, tools.json)


def _template_kwargs(body: PromptFields) -> dict[str, Any]:
    """What chat templates call these things. One that does not know a name ignores it."""
    effort = None if body.output_config is None else body.output_config.effort
    return {**_thinking_kwargs(body.thinking), **({} if effort is None else {"reasoning_effort": effort})}


def _thinking_kwargs(thinking: Thinking | None) -> dict[str, bool]:
    match thinking:
        case ThinkingEnabled():
            return {"enable_thinking": True, "thinking": True}
        case ThinkingDisabled():
            return {"enable_thinking": False, "thinking": False}
    return {}


def _output_form(body: MessagesRequest) -> OutputForm | None:
    given = None if body.output_config is None else body.output_config.format
    if given is None:
        return None
    param = "output_config.format"
    return output_form(typed_forms(given.type, given.schema, param, f"{param}.schema"))
