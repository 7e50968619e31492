"""Responses, for the generation endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from services.gateway.api.answers import Answer, AnswerHead, Parsed
from services.gateway.api.chat import template_kwargs_json
from services.gateway.api.parameters import GenerationParameters, check_parameters
from services.gateway.api.reading import FormatSettings
from services.gateway.api.responses.answer import ID_PREFIX, ResponseAnswer
from services.gateway.api.responses.conversation import Conversation
from services.gateway.api.responses.request import ENCRYPTED_REASONING, LOGPROBS, ResponseRequest
from services.gateway.api.responses.tools import read_tools, tool_use
from services.gateway.api.structured_output import extension_forms, output_form, typed_forms
from services.gateway.errors import invalid, unsupported
from services.gateway.forms import OutputForm
from services.gateway.prompts import ChatPrompt
from services.gateway.validation import decode, refuse_later_features

_BODY = msgspec.json.Decoder(ResponseRequest)


class ResponseDialect:
    """Responses, for the generation endpoint."""

    path = "/v1/responses"
    id_prefix = ID_PREFIX
    renders_chat = True
    prompt_field = "input"

    def __init__(self, formats: FormatSettings) -> None:
        self._formats = formats

    def parse(self, data: bytes) -> Parsed:
        """The checked body. Raises ApiError 400."""
        body = decode(_BODY, data)
        refuse_later_features(body, body.off_values)
        check_parameters(body)
        _check(body)
        tools = tool_use(read_tools(body.tools or ()), body.tool_choice, parallel=body.parallel_tool_calls is not False)
        form = tools.form_beside(output_form(_text_forms(body), extension_forms(body)))
        conversation = Conversation(body.instructions, body.input)
        kwargs = template_kwargs_json(body.chat_template_kwargs)
        prompt = ChatPrompt(conversation.messages_json, None, kwargs, tools.json)
        renamed = {**conversation.fields, "messages_json": "input", "messages": "input"}
        return Parsed(body, prompt, form, partial(self._formats.reading, tools), renamed)

    def answer(self, head: AnswerHead, body: GenerationParameters) -> Answer:
        """What builds the answer."""
        assert isinstance(body, ResponseRequest)
        return ResponseAnswer(head, body)


def _check(body: ResponseRequest) -> None:
    """What types and ranges cannot say. Raises ApiError 400."""
    for index, name in enumerate(body.include or ()):
        if name not in (LOGPROBS, ENCRYPTED_REASONING):
            raise unsupported(f"include[{index}]", f"{name!r} is not supported, only {LOGPROBS!r} is")
    if body.top_logprobs and body.num_logprobs is None:
        raise invalid(f"top_logprobs is only allowed when include has {LOGPROBS!r}", "top_logprobs")
    if body.stream_options is not None:
        if not body.stream:
            raise invalid("stream_options is only allowed when stream is true", "stream_options")
        if body.stream_options.include_obfuscation:
            reason = "not supported; leave it out or set it to false"
            raise unsupported("stream_options.include_obfuscation", reason)
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        raise unsupported("text.verbosity", "not supported; leave it out or set it to 'medium'")
    if body.reasoning is not None:
        if body.reasoning.effort is not None:
            reason = "not supported; chat_template_kwargs has what the model's template knows"
            raise unsupported("reasoning.effort", reason)
        if body.reasoning.summary not in (None, "auto"):
            raise unsupported("reasoning.summary", "not supported; leave it out or set it to 'auto'")


def _text_forms(body: ResponseRequest) -> Iterator[OutputForm]:
    """What `text.format` asks for."""
    given = None if body.text is None else body.text.format
    if given is None:
        return
    if given.type == "json_schema" and given.name is None:
        raise invalid("text.format.name is required with this type", "text.format.name")
    yield from typed_forms(given.type, given.schema, "text.format", "text.format.schema")
