"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from services.gateway.api.messages.blocks import MessageTurn, TextBlock
from services.gateway.api.messages.tools import ToolChoice, ToolList
from services.gateway.api.parameters import MAX_STOP_CHARACTERS, MAX_STOPS, OffValues, Priority, Seed, TokenCount
from services.gateway.api.structured_output import Schema

MIN_THINKING_BUDGET = 1024  # Anthropic's

StopSequences = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]], Meta(max_length=MAX_STOPS)
]
Display = Literal["summarized", "omitted"]


class ThinkingEnabled(msgspec.Struct, tag_field="type", tag="enabled"):
    """The model thinks, if its template lets it."""

    budget_tokens: Annotated[int, Meta(ge=MIN_THINKING_BUDGET)]
    display: Display | None = None


class ThinkingDisabled(msgspec.Struct, tag_field="type", tag="disabled"):
    """The model does not think, if its template can tell it so."""


class ThinkingAdaptive(msgspec.Struct, tag_field="type", tag="adaptive"):
    """As the template has it."""

    display: Display | None = None


Thinking = ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive


class OutputFormat(msgspec.Struct):
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema: Schema = msgspec.UNSET


class OutputConfig(msgspec.Struct):
    """`output_config`."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(msgspec.Struct):
    """`metadata`: for the provider's statistics, which this server does not keep."""

    user_id: str | None = None


class UnsupportedFields(msgspec.Struct, kw_only=True):
    """Fields of known meaning that this server does not have: refused by name rather than ignored in silence."""

    billing_policy: Any = None
    compaction: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    output_format: Any = None
    service_tier: Any = None
    speed: Any = None
    thread: Any = None


# Values that leave each feature off; null always does.
_OFF_VALUES: OffValues = {
    "billing_policy": (),
    "compaction": (),
    "container": (),
    "context_management": (),
    "diagnostics": (),
    "fallback_credit_token": (),
    "fallbacks": ([],),
    "inference_geo": (),
    "mcp_servers": ([],),
    "output_format": (),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thread": (),
}


class PromptFields(UnsupportedFields, kw_only=True):
    """What the prompt is made of: the body of a count of tokens."""

    off_values: ClassVar[OffValues] = _OFF_VALUES

    messages: list[MessageTurn]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None


class MessagesRequest(PromptFields, kw_only=True):
    """The body of a message. The last three are extensions."""

    max_tokens: TokenCount
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    stop_sequences: StopSequences | None = None
    metadata: Metadata | None = None
    seed: Seed | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
