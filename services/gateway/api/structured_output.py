"""The fields that give the output a form: OpenAI's response_format, and vLLM's structured_outputs and guided_*."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from services.gateway.errors import ApiError, invalid, unsupported
from services.gateway.forms import OutputForm
from services.gateway.validation import require_depth

MAX_FORM_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
RESPONSE_FORMATS = ("text", "json_object", "json_schema")
_UNSUPPORTED = ("structural_tag", "whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")

Schema = Annotated[  # a JSON Schema, or a string with its text; null as in all fields
    msgspec.Raw | msgspec.UnsetType, Meta(extra_json_schema={"type": ["object", "boolean", "string", "null"]})
]
SchemaName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
Choice = Annotated[list[str], Meta(min_length=1)]


class JsonSchema(msgspec.Struct):
    """`response_format.json_schema`."""

    name: SchemaName
    schema: Schema = msgspec.UNSET
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """`response_format`."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(RESPONSE_FORMATS)})]
    json_schema: JsonSchema | None = None
    schema: Any = None


class StructuredOutputs(msgspec.Struct):
    """`structured_outputs`: one of the first five."""

    json: Schema = msgspec.UNSET
    regex: str | None = None
    choice: Choice | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: Any = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class ExtensionFields(Protocol):
    """A body with vLLM's fields for a form."""

    structured_outputs: StructuredOutputs | None
    guided_json: Schema
    guided_regex: str | None
    guided_choice: Choice | None
    guided_grammar: str | None


def output_form(*asked_for: Iterator[OutputForm]) -> OutputForm | None:
    """The form that the output must have; None where it is free. Raises ApiError 400.

    A request has at most one, in whichever field.
    """
    forms = list(chain.from_iterable(asked_for))
    if not forms:
        return None
    form, *others = forms
    if others:
        raise invalid(f"{others[0].param} cannot be used together with {form.param}", others[0].param)
    size = len(form.text.encode()) + sum(len(choice.encode()) for choice in form.choices)
    if size > MAX_FORM_BYTES:
        raise invalid(f"{form.param} has {size} bytes, at most {MAX_FORM_BYTES} are allowed", form.param)
    return form


def extension_forms(body: ExtensionFields) -> Iterator[OutputForm]:
    """What the extensions ask for. Raises ApiError 400."""
    if (given := body.structured_outputs) is not None:
        yield from _of_extensions("structured_outputs.", given.json, given.regex, given.choice, given.grammar)
        if given.json_object:
            yield OutputForm("json_object", "structured_outputs.json_object")
        for name in _UNSUPPORTED:
            if getattr(given, name) not in (None, False):
                raise unsupported(f"structured_outputs.{name}", "not supported; leave it out")
    yield from _of_extensions("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)


def response_forms(given: ResponseFormat | None) -> Iterator[OutputForm]:
    """What `response_format` asks for. Raises ApiError 400."""
    if given is None:
        return
    if given.schema is not None:  # where other servers have it
        raise unsupported("response_format.schema", "the place of a schema is response_format.json_schema.schema")
    if given.type == "json_schema" and given.json_schema is None:
        raise invalid("response_format.json_schema is required with this type", "response_format.json_schema")
    schema = msgspec.UNSET if given.json_schema is None else given.json_schema.schema
    yield from typed_forms(given.type, schema, "response_format", "response_format.json_schema.schema")


def typed_forms(kind: str, schema: Schema, param: str, schema_param: str) -> Iterator[OutputForm]:
    """What OpenAI's three types of a format ask for. Raises ApiError 400."""
    if kind != "json_schema" and schema is not msgspec.UNSET and bytes(schema) != b"null":
        raise invalid(f"{schema_param} needs the type 'json_schema'", schema_param)
    match kind:
        case "text":
            pass
        case "json_object":
            yield OutputForm("json_object", f"{param}.type")
        case "json_schema":
            forms = list(_schema_forms(schema, schema_param))
            if not forms:
                raise invalid(f"{schema_param} is required: a JSON Schema", schema_param)
            yield from forms
        case other:
            reason = f"{other!r} is not supported, only 'text', 'json_object' and 'json_schema' are"
            raise unsupported(f"{param}.type", reason)


def _of_extensions(
    prefix: str, schema: Schema, regex: str | None, choice: list[str] | None, grammar: str | None
) -> Iterator[OutputForm]:
    yield from _schema_forms(schema, f"{prefix}json")
    if regex is not None:
        yield OutputForm("regex", f"{prefix}regex", regex)
    if choice is not None:
        yield OutputForm("choice", f"{prefix}choice", choices=tuple(choice))
    if grammar is not None:
        yield OutputForm("grammar", f"{prefix}grammar", grammar)


def _schema_forms(given: Schema, param: str) -> Iterator[OutputForm]:
    """One form, or none where there is no schema."""
    if given is msgspec.UNSET or bytes(given) == b"null":
        return
    schema, text = _decoded(bytes(given), param), bytes(given).decode()
    if isinstance(schema, str):
        schema, text = _decoded(schema.encode(), param), schema
    if not isinstance(schema, dict | bool):
        raise invalid(f"{param} must be a JSON Schema: an object", param)
    require_depth(schema, MAX_SCHEMA_DEPTH, param)
    yield OutputForm("json_schema", param, text)


def _decoded(text: bytes, param: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _not_json(param, error) from None


def _not_json(param: str, error: Exception) -> ApiError:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return invalid(f"{param} is not valid JSON: {reason}", param)
