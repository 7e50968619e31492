"""What /openapi.json says of each route: what it is for, what it takes and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from services.gateway.api.answer_types import ChatChunk, ChatCompletion, Completion, CompletionChunk
from services.gateway.api.chat import ChatMessage, ChatRequest
from services.gateway.api.completions import CompletionRequest
from services.gateway.api.embeddings import EmbeddingList, EmbeddingRequest
from services.gateway.api.messages.answer_types import CountedTokens, MessageAnswer, StreamEvent
from services.gateway.api.messages.request import MessagesRequest, PromptFields
from services.gateway.api.models import Model, ModelList
from services.gateway.api.operations import Health, Index, ReadOut, Ready, Version
from services.gateway.api.responses.answer_types import Response
from services.gateway.api.responses.event_types import EVENTS
from services.gateway.api.responses.items import ITEM_TYPES
from services.gateway.api.responses.request import ResponseRequest
from services.gateway.api.responses.tools import FunctionTool
from services.gateway.api.tokenize import DetokenizeRequest, Text, TokenizeRequest, Tokens
from services.gateway.api.tools import Tool

SERVER_TIMING = "Server-Timing"
NO_MODEL = 404

# Types of values that the requests hold as JSON text; their schemas refer to these by name.
HELD_TYPES = (ChatMessage, Tool, FunctionTool, *ITEM_TYPES.values())


@dataclass(frozen=True, slots=True)
class Description:
    """A route.

    `answer`: the type of the JSON of status 200, or the media type of a text. `body`: the request's type, and with it
    the errors of a request that does work. `events`: the types that the data of a stream's events has, where the
    answer may be a stream. `headers`: of the answer, beside those of every answer. `errors`: further statuses.
    """

    summary: str
    answer: Any
    body: type[msgspec.Struct] | None = None
    events: tuple[Any, ...] = ()
    headers: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()


DESCRIPTIONS = {
    "GET /": Description("The paths that there are", Index),
    "POST /v1/chat/completions": Description(
        "Answer a chat", ChatCompletion, ChatRequest, (ChatChunk,), headers=(SERVER_TIMING,)
    ),
    "POST /v1/completions": Description(
        "Continue a text", Completion, CompletionRequest, (CompletionChunk,), headers=(SERVER_TIMING,)
    ),
    "POST /v1/responses": Description("Answer with items", Response, ResponseRequest, EVENTS, headers=(SERVER_TIMING,)),
    "POST /v1/embeddings": Description("Vectors of texts", EmbeddingList, EmbeddingRequest, headers=(SERVER_TIMING,)),
    "POST /v1/messages": Description(
        "Answer messages in Anthropic's form",
        MessageAnswer,
        MessagesRequest,
        get_args(StreamEvent),
        headers=(SERVER_TIMING,),
    ),
    "POST /v1/messages/count_tokens": Description(
        "Tokens of messages in Anthropic's form", CountedTokens, PromptFields
    ),
    "POST /tokenize": Description("Token ids of a text or a chat", Tokens, TokenizeRequest),
    "POST /detokenize": Description("Text of token ids", Text, DetokenizeRequest),
    "GET /v1/models": Description("The served model, as a list", ModelList),
    "GET /v1/models/{model}": Description("The served model by its name", Model, errors=(NO_MODEL,)),
    "GET /health": Description("Whether the process is alive", Health),
    "GET /ready": Description("Whether a request would be served now", Ready, errors=(503,)),
    "GET /version": Description("The version of Postroad", Version),
    "GET /openapi.json": Description("This document", dict[str, Any]),
    "GET /metrics": Description("Metrics for Prometheus", CONTENT_TYPE_LATEST),
    "GET /debug/read_out": Description("What the gateway holds", ReadOut),
}
