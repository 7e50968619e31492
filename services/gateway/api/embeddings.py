"""POST /v1/embeddings: one vector per input, of the served model's last states."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from services.gateway import wire
from services.gateway.api.answer_types import Milliseconds
from services.gateway.api.endpoint import Endpoint, Exchange
from services.gateway.api.parameters import UINT32_MAX, OffValues, check_cache_salt
from services.gateway.api.prompt_field import PromptField, given_prompts, prompts_schema, require_tokens
from services.gateway.deltas import Ending, Usage
from services.gateway.embeddings import Embedding, EmbeddingRun
from services.gateway.errors import invalid
from services.gateway.gateway import Gateway
from services.gateway.validation import decode, refuse_later_features, require_one_of

MAX_INPUTS = 2048  # OpenAI's
ENCODING_FORMATS = ("float", "base64")

EncodingFormat = Annotated[str, Meta(extra_json_schema={"enum": list(ENCODING_FORMATS)})]
PoolingName = Annotated[str, Meta(extra_json_schema={"enum": list(wire.POOLINGS)})]
# JSON text: numbers, or a string.
Vector = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]})
]


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """The body of a request for embeddings. null means the same as leaving a field out."""

    off_values: ClassVar[OffValues] = {
        "messages": (),
        "normalize": (True,),
        "stream": (False,),
        "truncate_prompt_tokens": (),
        "embed_dtype": ("float32",),
        "endianness": ("little", "native"),
    }

    input: Annotated[PromptField, Meta(extra_json_schema=prompts_schema(MAX_INPUTS))]
    model: str | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: Annotated[int, Meta(ge=1, le=UINT32_MAX)] | None = None
    user: str | None = None
    pooling: PoolingName | None = None  # our extension
    add_special_tokens: bool | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    cache_salt: str | None = None
    timings: bool | None = None  # our extension: the times of the request beside its usage
    messages: Any = None
    normalize: Any = None
    stream: Any = None
    truncate_prompt_tokens: Any = None
    embed_dtype: Any = None
    endianness: Any = None


class EmbeddingEntry(TypedDict):
    """An input's embedding: numbers, or Base64 of float32 numbers, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: Vector


class EmbeddingUsage(TypedDict):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """What is answered."""

    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage
    timings: NotRequired[Milliseconds]


_BODY = msgspec.json.Decoder(EmbeddingRequest)


class EmbeddingsEndpoint(Endpoint):
    """Answers from the tokenizer and the engine."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "/v1/embeddings", "input")

    async def serve(self, exchange: Exchange) -> None:
        """Answers when all embeddings are there."""
        context, record, road = exchange.context, exchange.record, self._gateway.road
        body = decode(_BODY, exchange.body)
        prompts = given_prompts(body.input, "input", MAX_INPUTS, body.add_special_tokens)
        _check(body)
        if exchange.api_key is not None:
            body.cache_salt = exchange.api_key.cache_salt(body.cache_salt)
        model = await self._gateway.model(body.model, road.patience(context))
        if body.dimensions not in (None, model.embedding_size):
            raise invalid(f"dimensions must be {model.embedding_size}, the model's own size, or left out", "dimensions")
        encoded = await road.encode(prompts, context, record.times)
        require_tokens(encoded.ids, "input")
        record.prompt_tokens = sum(map(len, encoded.ids))
        runs = [
            EmbeddingRun(index, wire.embed_request(ids, body.pooling, body.cache_salt, body.priority))
            for index, ids in enumerate(encoded.ids)
        ]
        record.times.runs = [run.times for run in runs]
        embeddings = await road.embed_all(runs, context)
        record.endings = [Ending("ok", embedding.usage, embedding.times) for embedding in embeddings]
        record.usage = _total([embedding.usage for embedding in embeddings])
        timings = record.times.as_json() if body.timings else None
        encoding = body.encoding_format or "float"
        # On a thread: the numbers of 2,048 inputs take a third of a second and more.
        answer = await asyncio.to_thread(_answer, embeddings, encoding, model.name, record.usage, timings)
        await exchange.reply.json(answer, headers=[(b"server-timing", record.times.server_timing())])


def _check(body: EmbeddingRequest) -> None:
    """Checks what types and ranges cannot say. Raises ApiError 400."""
    refuse_later_features(body, body.off_values)
    require_one_of(body.encoding_format, ENCODING_FORMATS, "encoding_format")
    require_one_of(body.pooling, tuple(wire.POOLINGS), "pooling")
    check_cache_salt(body.cache_salt)


def _total(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=0,
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )


def _answer(
    embeddings: Sequence[Embedding], encoding: str, model: str, usage: Usage, timings: dict[str, float] | None
) -> bytes:
    """The body, in OpenAI's form."""
    data: list[EmbeddingEntry] = [
        {"object": "embedding", "index": index, "embedding": _encoded(embedding.vector, encoding)}
        for index, embedding in enumerate(embeddings)
    ]
    answer: EmbeddingList = {
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
    }
    if timings is not None:
        answer["timings"] = timings
    return msgspec.json.encode(answer)


def _encoded(vector: Sequence[float], encoding: str) -> msgspec.Raw:
    """One vector as JSON text: a thread lets the others run between two calls of the encoder and not within one.

    base64: of float32, little-endian, as OpenAI's clients read it.
    """
    if encoding == "base64":
        return msgspec.Raw(msgspec.json.encode(base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()))
    return msgspec.Raw(msgspec.json.encode(list(vector)))
