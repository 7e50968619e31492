"""The fields that give the output a form: what leaves for the stations, and what is refused by which name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.common.errors import InvalidArgument
from services.pb.postroad.v1 import common_pb2
from tests.gateway.support.running import RunningGateway

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}, "required": ["é"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


def sent(gateway: RunningGateway) -> common_pb2.StructuredOutput:
    request = gateway.stations.detokenizer.requests[-1].request
    form: common_pb2.StructuredOutput = request.structured_output
    return form


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": JSON_SCHEMA},
        {"response_format": {**JSON_SCHEMA, "type": "json_schema"}, "guided_json": None},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
    ],
)
async def test_a_schema_in_each_spelling(gateway: RunningGateway, fields: dict[str, Any]) -> None:
    for call in (gateway.chat, gateway.complete):
        assert (await call(**fields)).status_code == 200
        assert json.loads(sent(gateway).json_schema) == SCHEMA


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"response_format": {"type": "json_object"}}, common_pb2.StructuredOutput(json_object=True)),
        ({"structured_outputs": {"json_object": True}}, common_pb2.StructuredOutput(json_object=True)),
        ({"structured_outputs": {"regex": "a+"}}, common_pb2.StructuredOutput(regex="a+")),
        ({"guided_regex": "a+"}, common_pb2.StructuredOutput(regex="a+")),
        ({"structured_outputs": {"grammar": "root ::= 'a'"}}, common_pb2.StructuredOutput(grammar="root ::= 'a'")),
        ({"guided_grammar": "start: A"}, common_pb2.StructuredOutput(grammar="start: A")),
        (
            {"structured_outputs": {"choice": ["a", ""]}},
            common_pb2.StructuredOutput(choice=common_pb2.StructuredChoices(texts=["a", ""])),
        ),
        (
            {"guided_choice": ["é"]},
            common_pb2.StructuredOutput(choice=common_pb2.StructuredChoices(texts=["é"])),
        ),
    ],
)
async def test_the_other_forms(gateway: RunningGateway, fields: Any, form: common_pb2.StructuredOutput) -> None:
    for call in (gateway.chat, gateway.complete):
        assert (await call(**fields)).status_code == 200
        assert sent(gateway) == form


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False, "json": None, "regex": None}},
        {"guided_json": None, "guided_regex": None, "guided_choice": None, "guided_grammar": None},
    ],
)
async def test_no_form(gateway: RunningGateway, fields: dict[str, Any]) -> None:
    assert (await gateway.chat(**fields)).status_code == 200
    assert not gateway.stations.detokenizer.requests[-1].request.HasField("structured_output")


def schema_format(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("response_format", {"response_format": "json_object"}),
        ("response_format.type", {"response_format": {}}),
        ("response_format.type", {"response_format": {"type": "xml"}}),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
        (
            "response_format.json_schema.name",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        ),
        ("response_format.json_schema.name", schema_format({}, name="a b")),
        ("response_format.json_schema.name", schema_format({}, name="a" * 65)),
        ("response_format.json_schema.strict", schema_format({}, strict="yes")),
        ("response_format.json_schema.schema", schema_format(None)),
        ("response_format.json_schema.schema", schema_format([])),
        ("response_format.json_schema.schema", schema_format("{")),
        ("response_format.json_schema.schema", schema_format(nested(65))),
        ("response_format.json_schema.schema", schema_format({"title": "x" * 2**18})),
        ("structured_outputs.json", {"structured_outputs": {"json": 3}}),
        ("structured_outputs.regex", {"structured_outputs": {"regex": 3}}),
        ("structured_outputs.choice", {"structured_outputs": {"choice": []}}),
        ("structured_outputs.structural_tag", {"structured_outputs": {"structural_tag": "{}"}}),
        ("structured_outputs.whitespace_pattern", {"structured_outputs": {"whitespace_pattern": " "}}),
        ("structured_outputs.disable_any_whitespace", {"structured_outputs": {"disable_any_whitespace": True}}),
        (
            "structured_outputs.disable_additional_properties",
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
        ),
        ("response_format.schema", {"response_format": {"type": "json_object", "schema": SCHEMA}}),
        ("response_format.schema", {"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": None}}),
        (
            "response_format.json_schema.schema",
            {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": SCHEMA}}},
        ),
        ("structured_outputs.choice", {"structured_outputs": {"choice": ["a"], "regex": "a"}}),
        ("guided_regex", {"guided_regex": "a", "response_format": {"type": "json_object"}}),
        ("guided_choice", {"guided_choice": ["a" * 2**17] * 3}),
        ("guided_grammar", {"guided_grammar": ["a"]}),
    ],
)
async def test_refusals_name_the_field(gateway: RunningGateway, param: str, fields: dict[str, Any]) -> None:
    for call in (gateway.chat, gateway.complete):
        response = await call(**fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), error
        assert param in error["message"]
    assert not gateway.stations.detokenizer.requests


async def test_a_schema_as_deep_as_allowed(gateway: RunningGateway) -> None:
    assert (await gateway.chat(**schema_format(nested(64)))).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_has_the_client_s_name(gateway: RunningGateway, stream: bool) -> None:
    async def refuse(request: Any, given: Any) -> Any:
        raise InvalidArgument("the schema cannot be used: Unimplemented keys", "structured_output.json_schema")
        yield

    gateway.stations.detokenizer.script = refuse
    for fields, param in (
        (schema_format({}), "response_format.json_schema.schema"),
        ({"guided_json": {}}, "guided_json"),
    ):
        response = await gateway.chat(**fields, stream=stream)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, param, "invalid_value")
        assert error["message"] == f"{param}: the schema cannot be used: Unimplemented keys"
