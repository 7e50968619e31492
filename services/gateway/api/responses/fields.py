"""What a response says of its request: its fields, with the defaults of those that were left out."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from services.gateway.api.answers import AnswerHead
from services.gateway.api.responses.answer_types import ReasoningFields, Response, TextFields
from services.gateway.api.responses.request import ResponseRequest, TextFormat
from services.gateway.api.responses.tools import FunctionTool, ResponseToolChoice, read_tools


def response_fields(head: AnswerHead, body: ResponseRequest) -> Response:
    """A response that has begun."""
    return Response(
        id=head.id,
        object="response",
        created_at=head.created,
        status="in_progress",
        model=head.model,
        output=[],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=ReasoningFields(None, None if body.reasoning is None else body.reasoning.summary),
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_logprobs=body.top_logprobs or 0,
        text=TextFields(_format(None if body.text is None else body.text.format), "medium"),
        tool_choice=_choice(body.tool_choice),
        tools=[_tool(tool) for tool in read_tools(body.tools or ())],
        user=UNSET if body.user is None else body.user,
        safety_identifier=UNSET if body.safety_identifier is None else body.safety_identifier,
        prompt_cache_key=UNSET if body.prompt_cache_key is None else body.prompt_cache_key,
    )


def _format(given: TextFormat | None) -> dict[str, Any]:
    if given is None or given.type != "json_schema":
        return {"type": "text" if given is None else given.type}
    told = {"type": given.type, "name": given.name, "schema": given.schema, "strict": given.strict}
    return told if given.description is None else {**told, "description": given.description}


def _choice(given: ResponseToolChoice | None) -> str | dict[str, Any]:
    if given is None or isinstance(given, str):
        return given or "auto"
    return {name: value for name, value in msgspec.to_builtins(given).items() if value is not None}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
