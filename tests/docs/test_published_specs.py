"""docs/api.md says where we differ from the specifications that OpenAI and Anthropic publish; it is exactly there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from services.gateway.api.descriptions import DESCRIPTIONS
from services.gateway.api.parameters import OFF_VALUES
from tests.docs.pages import codes, section
from tests.support.answer_schemas import Difference, documented_differences, our_answer_schema, our_spec
from tests.support.published_specs import EVENTS, OPENAI, WHOLE, publisher
from tests.support.schema_fields import fields_of, may_be_null, requires, types_of, values_of

COMPLETIONS = ("POST /v1/chat/completions", "POST /v1/completions")


def outermost(names: set[str]) -> set[str]:
    """Without the fields of fields that are in it themselves."""
    return {
        name for name in names if not any(name.startswith((f"{other}.", f"{other}[", f"{other}{{")) for other in names)
    }


def differences(operation: str, media: str) -> Iterator[Difference]:
    if (published := publisher(operation)) is None:
        return
    spec = published.restricted([operation])
    theirs = fields_of(spec, published.answer_schema(spec, operation, media))
    ours = fields_of(our_spec(), our_answer_schema(operation, media))
    for field in outermost(set(ours) - set(theirs)):
        yield Difference(operation, media, field, "added")
    for field in set(ours) & set(theirs):
        if may_be_null(ours[field]) and not may_be_null(theirs[field]):
            yield Difference(operation, media, field, "null")
        if values_of(theirs[field]) and not values_of(ours[field]) <= values_of(theirs[field]):
            yield Difference(operation, media, field, "values")
        if types_of(theirs[field]) and not types_of(ours[field]) <= types_of(theirs[field]):
            yield Difference(operation, media, field, "type")


def test_answers() -> None:
    found = {
        difference
        for operation, description in DESCRIPTIONS.items()
        for media in (WHOLE, *((EVENTS,) if description.events else ()))
        for difference in differences(operation, media)
    }
    assert found == {difference for difference in documented_differences() if difference.kind != "absent"}


def test_what_answers_leave_out() -> None:
    """That nothing else is left out, the answers themselves tell: tests/e2e/test_answer_schemas.py."""
    for difference in (difference for difference in documented_differences() if difference.kind == "absent"):
        operation, media = difference.operation, difference.media
        published = publisher(operation)
        assert published is not None
        spec = published.restricted([operation])
        theirs = fields_of(spec, published.answer_schema(spec, operation, media))
        holder, _, name = difference.field.rpartition(".")
        assert requires(theirs[holder], name)
        assert difference.field not in fields_of(our_spec(), our_answer_schema(operation, media))


def request_fields(spec: dict[str, Any], operation: str) -> set[str]:
    """The fields of a body."""
    method, path = operation.split()
    content = spec["paths"][path][method.lower()]["requestBody"]["content"]
    return {field for field in fields_of(spec, content["application/json"]["schema"]) if field.isidentifier()}


@pytest.fixture(scope="module")
def bodies() -> tuple[set[str], set[str]]:
    """The fields of both kinds of completion: ours and OpenAI's."""
    published = OPENAI.restricted(COMPLETIONS)
    ours, theirs = (
        set().union(*(request_fields(spec, operation) for operation in COMPLETIONS)) for spec in (our_spec(), published)
    )
    return ours, theirs


def sentence(start: str) -> str:
    """The item of the list of differences that begins so."""
    _, _, rest = section("api.md", "What differs").partition(f"- {start}")
    return rest.partition("\n- ")[0].partition("\n\n")[0]


def test_extensions(bodies: tuple[set[str], set[str]]) -> None:
    ours, theirs = bodies
    assert set(codes(sentence("extensions"))) == ours - theirs - set(OFF_VALUES)


def test_fields_without_effect(bodies: tuple[set[str], set[str]]) -> None:
    ours, theirs = bodies
    assert set(codes(sentence("accepted without effect"))) == theirs - ours
