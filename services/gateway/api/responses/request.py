"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from services.gateway.api.parameters import GenerationParameters, LogprobCount, OffValues, TokenCount
from services.gateway.api.responses.items import ITEM_TYPES
from services.gateway.api.responses.tools import ResponseToolChoice, ResponseToolList
from services.gateway.api.structured_output import RESPONSE_FORMATS, Schema, SchemaName

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"  # asked for by stateless clients; reasoning is sent in the open


class TextFormat(msgspec.Struct):
    """`text.format`."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(RESPONSE_FORMATS)})]
    name: SchemaName | None = None
    schema: Schema = msgspec.UNSET
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct):
    """`text`."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct):
    """`reasoning`."""

    effort: str | None = None
    summary: str | None = None


class ResponseStreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_obfuscation: bool | None = None


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
_KINDS = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in ITEM_TYPES.values()]
AnyItem = Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": _KINDS})]
Items = Annotated[list[AnyItem], Meta(min_length=1)]

# Fields that this server does not have, and the fields of chats that have another name here.
REFUSED: OffValues = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_retention": ("in_memory",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "truncation": ("disabled",),
    "messages": (),
    "max_tokens": (),
    "max_completion_tokens": (),
    "n": (1,),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "response_format": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
}


class RefusedByResponses(GenerationParameters, kw_only=True):
    """Fields that are refused by name rather than ignored in silence."""

    background: Any = None
    context_management: Any = None
    conversation: Any = None
    moderation: Any = None
    previous_response_id: Any = None
    prompt: Any = None
    prompt_cache_retention: Any = None
    service_tier: Any = None
    store: Any = None
    truncation: Any = None
    messages: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    n: Any = None
    logprobs: Any = None
    prompt_logprobs: Any = None
    response_format: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None


class ResponseRequest(RefusedByResponses, kw_only=True):
    """The body of a request for a response."""

    off_values: ClassVar[OffValues] = REFUSED

    input: str | Items
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    text: TextConfig | None = None
    tools: ResponseToolList | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: TokenCount | None = None
    include: list[str] | None = None
    top_logprobs: LogprobCount | None = None
    reasoning: ReasoningConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def token_limit(self) -> int | None:
        return self.max_output_tokens

    @property
    def token_limit_field(self) -> str:
        return "max_output_tokens"
