"""docs/api.md against the request structs, the refused fields, the routes and the errors of the gateway."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import httpx
import msgspec
import pytest
import structlog
from starlette.applications import Starlette
from starlette.routing import Route

from services.common.tracing import Tracing
from services.gateway import wire
from services.gateway.admission import OPEN_PATHS
from services.gateway.api.chat import ROLES as GATEWAY_ROLES
from services.gateway.api.chat import ChatMessage, ChatRequest, ContentPart
from services.gateway.api.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from services.gateway.api.embeddings import ENCODING_FORMATS, MAX_INPUTS, EmbeddingRequest
from services.gateway.api.messages.answer_types import StopReason
from services.gateway.api.messages.blocks import Block, MessageTurn
from services.gateway.api.messages.request import (
    MessagesRequest,
    OutputConfig,
    PromptFields,
    Thinking,
)
from services.gateway.api.messages.request import UnsupportedFields as UnsupportedInMessages
from services.gateway.api.messages.tools import ToolChoice, ToolDefinition
from services.gateway.api.openapi import ERRORS, HEADERS, PARAMETERS
from services.gateway.api.parameters import (
    MAX_CACHE_SALT_BYTES,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    OFF_VALUES,
    UINT32_MAX,
    CompletionParameters,
    GenerationParameters,
    StreamOptions,
    UnsupportedFields,
)
from services.gateway.api.responses.event_types import EVENTS
from services.gateway.api.responses.items import ITEM_TYPES
from services.gateway.api.responses.request import REFUSED, RefusedByResponses, ResponseRequest
from services.gateway.api.tokenize import DetokenizeRequest, TokenizeRequest
from services.gateway.api.tool_use import MAX_TOOLS
from services.gateway.api_keys import KeyEntry
from services.gateway.app import make_app
from services.gateway.error_forms import ANTHROPIC_TYPES
from services.gateway.errors import ApiError, from_station, invalid
from services.gateway.gateway import Gateway
from services.gateway.road import EMBEDDINGS_AT_ONCE
from services.gateway.settings import GatewaySettings
from services.gateway.timings import PHASES
from services.tokenizer.chat import ROLES
from tests.docs.pages import ROOT, by_code, code, codes, section, table, tables
from tests.docs.test_errors import all_errors

PAGE = "api.md"


def fields(struct: type[msgspec.Struct], *without: type[msgspec.Struct]) -> list[str]:
    """A struct's own field names, without those of its bases."""
    inherited = {name for base in without for name in base.__struct_fields__}
    return [name for name in struct.__struct_fields__ if name not in inherited]


def documented(heading: str, number: int = 0) -> list[str]:
    return list(by_code(tables(section(PAGE, heading))[number], "field"))


@asynccontextmanager
async def app_client() -> AsyncIterator[tuple[Starlette, httpx.AsyncClient]]:
    """The application without stations, and a client for it."""
    gateway = Gateway(GatewaySettings.parse([]), Tracing("gateway", ""), structlog.get_logger())
    app = make_app(gateway)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        yield app, client
    for station in (gateway.stations.tokenizer, gateway.stations.detokenizer, *gateway.stations.engines.replicas):
        await station.close()


async def test_routes() -> None:
    async with app_client() as (app, client):
        routes = [route for route in app.routes if isinstance(route, Route)]
        served = {
            f"{method} {route.path.replace(':path', '')}"
            for route in routes
            for method in route.methods or ()
            if method != "HEAD"
        }
        index = (await client.get("/")).json()
    assert {code(row["method and path"]) for row in table(PAGE, "Paths")} == served
    assert set(index["paths"]) == served


def test_every_parameter() -> None:
    assert documented("Generation parameters") == fields(GenerationParameters)
    assert documented("Both kinds of completion") == fields(CompletionParameters, UnsupportedFields)
    assert documented("stream_options") == fields(StreamOptions)
    assert sorted(documented("Chat completions")) == sorted(fields(ChatRequest, CompletionParameters))
    assert documented("Chat completions", 1) == fields(ChatMessage)
    assert documented("Chat completions", 2) == fields(ContentPart)
    assert documented("Text completions") == fields(CompletionRequest, CompletionParameters)
    assert sorted(documented("POST /tokenize")) == sorted(fields(TokenizeRequest))
    assert documented("Responses") == fields(ResponseRequest, RefusedByResponses)
    assert documented("Embeddings") == fields(EmbeddingRequest)
    assert documented("API keys") == fields(KeyEntry)
    assert sorted(documented("POST /detokenize")) == sorted(fields(DetokenizeRequest))


def bounds(info: Any) -> Iterator[str]:
    """The ranges of a field's type in words; bounds of 32 bits are not worth one."""
    match info:
        case msgspec.inspect.UnionType():
            for part in info.types:
                yield from bounds(part)
        case msgspec.inspect.Metadata():
            yield from bounds(info.type)
        case msgspec.inspect.DictType():
            yield from (f"{text} each" for text in bounds(info.value_type))
            yield f"at most {info.max_length} entries"
        case msgspec.inspect.ListType() if info.max_length is not None:
            yield f"at most {info.max_length} entries"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            low, above, high = info.ge, info.gt, info.le
            if (low, high) == (-(2**63), 2**63 - 1):
                yield "-2^63 to 2^63 - 1"
            elif high == UINT32_MAX:
                yield f"at least {low:g}"
            elif low is not None:
                yield f"{low:g} to {high:g}"
            elif above is not None:
                yield f"more than {above:g}, at most {high:g}"


def test_ranges() -> None:
    both = [*table(PAGE, "Generation parameters"), *table(PAGE, "Both kinds of completion")]
    rows = by_code(both, "field")
    info = msgspec.inspect.type_info(CompletionParameters)
    assert isinstance(info, msgspec.inspect.StructType)
    checked_elsewhere = {
        "stop": f"a string or up to {MAX_STOPS}, none empty, {MAX_STOP_CHARACTERS} characters each",
        "cache_salt": f"at most {MAX_CACHE_SALT_BYTES} bytes",
    }
    ranges = {field.name: ", ".join(bounds(field.type)) for field in info.fields} | checked_elsewhere
    assert {name: row["range"] for name, row in rows.items()} == {name: ranges[name] for name in rows}
    assert rows["max_tokens"]["default"].endswith(f"text: {DEFAULT_MAX_TOKENS}")


def test_ranges_of_embeddings() -> None:
    rows = by_code(table(PAGE, "Embeddings"), "field")
    assert rows["input"]["range"].count(f"up to {MAX_INPUTS} ") == 2
    assert codes(rows["encoding_format"]["range"]) == list(ENCODING_FORMATS)
    assert codes(rows["pooling"]["range"]) == list(wire.POOLINGS)
    assert f"at most {EMBEDDINGS_AT_ONCE}\ninputs" in section(PAGE, "Embeddings")
    info = msgspec.inspect.type_info(EmbeddingRequest)
    assert isinstance(info, msgspec.inspect.StructType)
    [priority] = [field.type for field in info.fields if field.name == "priority"]
    assert ", ".join(bounds(priority)) == rows["priority"]["range"]
    assert {name: codes(rows[name]["range"]) for name in EmbeddingRequest.off_values} == {
        name: [msgspec.json.encode(value).decode() for value in values] or ["null"]
        for name, values in EmbeddingRequest.off_values.items()
    }


def test_every_parameter_of_a_message() -> None:
    rows = by_code(table(PAGE, "Anthropic's messages"), "field")
    assert sorted(rows) == sorted(fields(MessagesRequest, UnsupportedInMessages))
    sentence = section(PAGE, "Anthropic's messages").split("count_tokens` takes")[1].split("answers")[0]
    assert sorted(codes(sentence)) == sorted(fields(PromptFields, UnsupportedInMessages))
    info = msgspec.inspect.type_info(MessagesRequest)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        if field.name in ("max_tokens", "temperature", "top_p", "top_k", "seed", "priority"):
            assert rows[field.name]["range"] == ", ".join(bounds(field.type)), field.name
    assert rows["tools"]["range"] == f"at most {MAX_TOOLS}"
    assert rows["stop_sequences"]["range"] == f"up to {MAX_STOPS}, none empty, {MAX_STOP_CHARACTERS} characters each"


def tagged(kinds: Any) -> dict[str, list[str]]:
    """The fields of each type of a union, by the tag of the type."""
    return {str(kind.__struct_config__.tag): fields(kind) for kind in get_args(kinds)}


def test_the_parts_of_a_message() -> None:
    assert documented("Messages") == fields(MessageTurn)
    blocks = by_code(tables(section(PAGE, "Messages"))[1], "type")
    assert {kind: codes(row["fields"]) for kind, row in blocks.items()} == tagged(Block)
    assert documented("Tools and thinking") == fields(ToolDefinition)
    thinking = by_code(tables(section(PAGE, "Tools and thinking"))[1], "type")
    assert {kind: codes(row["fields"]) for kind, row in thinking.items()} == tagged(Thinking)
    output = tables(section(PAGE, "Tools and thinking"))[2]
    assert [code(row["field of `output_config`"]) for row in output] == fields(OutputConfig)
    said = codes(section(PAGE, "Tools and thinking").split("`tool_choice` is")[1].split("`thinking` is")[0])
    assert {name for kind in tagged(ToolChoice).items() for name in (kind[0], *kind[1])} <= set(said)
    reasons = by_code(table(PAGE, "Answers to messages"), "stop_reason")
    assert list(reasons) == list(get_args(StopReason))


def test_errors_and_refusals_of_messages() -> None:
    rows = by_code(table(PAGE, "Errors of messages"), "status")
    assert {int(status): code(row["type"]) for status, row in rows.items()} == ANTHROPIC_TYPES
    refused = by_code(table(PAGE, "Refused fields of messages"), "field")
    accepted = {name: codes(row["values that are accepted"]) for name, row in refused.items()}
    assert list(accepted) == fields(UnsupportedInMessages)
    assert accepted == {
        name: [msgspec.json.encode(value).decode() for value in values]
        for name, values in MessagesRequest.off_values.items()
    }


def test_roles() -> None:
    role = by_code(tables(section(PAGE, "Chat completions"))[1], "field")["role"]
    assert codes(role["meaning"]) == list(ROLES) == list(GATEWAY_ROLES)


def test_refused_fields_and_the_values_that_switch_them_off() -> None:
    rows = by_code(table(PAGE, "Refused fields"), "field")
    accepted = {name: codes(row["values that are accepted"]) for name, row in rows.items()}
    assert accepted == {
        name: [msgspec.json.encode(value).decode() for value in values] for name, values in OFF_VALUES.items()
    }


def test_responses() -> None:
    rows = by_code(table(PAGE, "Fields that responses refuse"), "field")
    assert {name: codes(row["values that are accepted"]) for name, row in rows.items()} == {
        name: [msgspec.json.encode(value).decode() for value in values] for name, values in REFUSED.items()
    }
    assert fields(RefusedByResponses, GenerationParameters) == list(REFUSED)
    assert list(by_code(table(PAGE, "Items"), "type")) == list(ITEM_TYPES)
    assert set(by_code(table(PAGE, "A response"), "event")) == {kind.__struct_config__.tag for kind in EVENTS}


def test_timings() -> None:
    listed = section(PAGE, "timings").split(". The phases")[0]
    assert re.findall(r"`(\w+_ms)`", listed) == [f"{name}_ms" for name in (*PHASES, "total")]


def own_codes() -> set[str]:
    """The codes that the gateway's sources spell out."""
    sources = "".join(path.read_text() for path in (ROOT / "services" / "gateway").rglob("*.py"))
    return set(re.findall(r"code=\"(\w+)\"", sources))


async def test_errors() -> None:
    rows = table(PAGE, "Errors")
    documented_errors = {(int(row["status"]), code(row["type"]), code(row["code"])) for row in rows}
    assert len(documented_errors) == len(rows)
    assert all(row["when"] for row in rows)
    station_errors: list[ApiError] = [from_station(cls("")) for cls in all_errors()]
    known = {(error.status, error.kind, str(error.code)) for error in (*station_errors, invalid("", "field"))}
    async with app_client() as (_, client):
        answers = [await client.get("/nowhere"), await client.get("/v1/completions"), await client.get("/ready")]
    for answer in answers:
        error = answer.json()["error"]
        known.add((answer.status_code, error["type"], error["code"]))
    assert known <= documented_errors
    codes_in_use = {code for _, _, code in known} | own_codes()
    assert {code for _, _, code in documented_errors} == codes_in_use


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ('{"messages": [], "best_of": 2}', 400, "unsupported_parameter"),
        ('{"messages": []}', 400, "invalid_value"),
        ("{", 400, "invalid_json"),
    ],
)
async def test_refusals_have_the_documented_code(body: str, status: int, expected: str) -> None:
    async with app_client() as (_, client):
        answer = await client.post("/v1/chat/completions", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, expected)
    assert expected in {code(row["code"]) for row in table(PAGE, "Errors") if row["status"] == str(status)}


def test_the_openapi_document_says_the_same() -> None:
    """Its paths are the routes, and its fields those of the request types, which other tests hold to this page."""
    rows = by_code(table(PAGE, "Headers"), "header")
    of = {name: row["of"] for name, row in rows.items()}
    assert {name for name in of if "request" in of[name].split(", ")} == set(PARAMETERS)
    assert {name for name in of if "answer" in of[name]} == set(HEADERS)
    statuses = {int(row["status"]) for row in table(PAGE, "Errors")}
    assert statuses - set(ERRORS) == {405, 431}, "outside all routes"
    assert set(ERRORS) <= statuses
    assert set(codes(section(PAGE, "API keys").split(" needs a key")[0])[1:]) == OPEN_PATHS


async def test_every_answer_has_the_request_id() -> None:
    async with app_client() as (_, client):
        kept = await client.get("/health", headers={"x-request-id": "mine-1"})
        replaced = await client.get("/health", headers={"x-request-id": "not usable"})
    assert kept.headers["x-request-id"] == "mine-1"
    assert replaced.headers["x-request-id"].startswith("req-")
