"""How a response looks; /openapi.json describes it by these types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from services.gateway.api.answer_types import ChatToken, Milliseconds

Status = Literal["in_progress", "completed", "incomplete", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
NOTHING = Meta(max_length=0)


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: Annotated[list[Any], NOTHING]
    logprobs: list[ChatToken]


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """The text of a reasoning item."""

    text: str


OutputPart = OutputText | ReasoningText


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thinks. There is no summary of it."""

    id: str
    status: ItemStatus
    summary: Annotated[list[Any], NOTHING]
    content: list[ReasoningText]


class OutputCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function that the model calls; `arguments` is JSON text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputReasoning | OutputCall


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class InputTokensDetails(msgspec.Struct):
    """Of the prompt's tokens those whose keys and values came from the prefix cache. Writing to it is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """Of the generated tokens those of the reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Tokens of the request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ReasoningFields(msgspec.Struct):
    """`reasoning` of the request."""

    effort: None
    summary: str | None


class TextFields(msgspec.Struct):
    """`text` of the request."""

    format: dict[str, Any]
    verbosity: Literal["medium"]


class Response(msgspec.Struct, kw_only=True):
    """A response. What the request asked for is in it, with the defaults of what it left out."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None = None
    status: Status
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | UnsetType = UNSET  # when it has ended
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: ReasoningFields
    temperature: float
    top_p: float
    top_logprobs: int
    text: TextFields
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    background: Annotated[bool, Meta(extra_json_schema={"const": False})] = False
    previous_response_id: None = None
    store: Annotated[bool, Meta(extra_json_schema={"const": False})] = False
    service_tier: Literal["default"] = "default"
    truncation: Literal["disabled"] = "disabled"
    user: str | UnsetType = UNSET
    safety_identifier: str | UnsetType = UNSET
    prompt_cache_key: str | UnsetType = UNSET
    timings: Milliseconds | UnsetType = UNSET
