"""Request bodies → checked values. Every refusal names the field and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from services.gateway.errors import ApiError, invalid, unsupported

T = TypeVar("T")

_HALF_AT_THE_END = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}[^\\]{0,5}"[^"\\]*$')

# msgspec ends its messages with the place, for instance "… - at `$.stop[0]`" or "… - at `key` in `$.logit_bias`".
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")

_UNKNOWN_KIND = "Invalid value "  # in the field that tells the types of a union apart
_MISSING = re.compile(r"Object missing required field `(\w+)`")

_JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_NAME = rf"(?:{'|'.join([*_JSON_TYPES, 'array', 'object', 'null'])})"
_TYPES = re.compile(rf"\b(expected|got) `({_NAME}(?: \| {_NAME})*)`")
_OUT_OF_RANGE = re.compile(r"expected (?:number|integer) [<>]")
_STEP = re.compile(r"[^.\[\]]+")
_MOST_TOLD = 10**40  # a number beyond has too many digits for a message


def decode(decoder: msgspec.json.Decoder[T], data: bytes, field: str = "") -> T:
    """The typed value of JSON text; ApiError 400 when it is none. `field`: where in the body the text stands."""
    if not data.strip():
        raise ApiError(400, "the body is empty; it must be a JSON object", code="invalid_json")
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), field, partial(_untyped, data)) from None
    except msgspec.DecodeError as error:
        raise ApiError(400, _not_json(str(error), data), code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the request body is nested too deeply", code="invalid_json") from None


def convert(value: object, kind: type[T], field: str) -> T:
    """The typed form of a decoded value; ApiError 400 when it has none. `field`: where in the body it stands."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), field, lambda: value) from None


def _not_json(text: str, data: bytes) -> str:
    """msgspec calls a body truncated when it ends soon after the first half of a surrogate pair."""
    if "surrogate" in text or _HALF_AT_THE_END.search(data[-32:]):
        return "the request body has half of a UTF-16 surrogate pair, as \\ud83d alone, which is not a character"
    return f"the request body is not valid JSON: {text}"


def _untyped(data: bytes) -> object:
    """The value of JSON text; None where a part that no type looks at has none."""
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(data)
    return None


def _wrong_field(text: str, field: str, given: Callable[[], object]) -> ApiError:
    place = _PLACE.search(text)
    param = field if place is None else _joined(field, place[1].removesuffix("[...]"))
    said = text if place is None else text[: place.start()]
    if missing := _MISSING.match(said):
        param = _joined(param, missing[1])
        return invalid(f"{param} is required", param)
    if said.startswith(_UNKNOWN_KIND):
        return unsupported(param, f"{said.removeprefix(_UNKNOWN_KIND)} is not supported")
    said = _json_words(said)
    if place is not None and _OUT_OF_RANGE.match(said):
        said += _got_number(given(), place[1])
    return invalid(f"{param or 'the request body'}: {said}", param or None)


def _got_number(value: object, path: str) -> str:
    """The number at the place, for the end of a message; empty where there is none, as behind a `[...]`."""
    for step in _STEP.findall(path):
        match value:
            case dict():
                value = value.get(step)
            case list() if step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            case _:
                return ""
    is_number = isinstance(value, int | float) and abs(value) < _MOST_TOLD
    return f", got {value}" if is_number else ""


def _joined(path: str, inner: str) -> str:
    return f"{path}.{inner}" if path and inner and not inner.startswith("[") else path + inner


def _json_words(text: str) -> str:
    """msgspec's words with JSON's names of the types: "Expected `float | null`, got `str`" names Python's."""

    def words(match: re.Match[str]) -> str:
        *names, last = [_JSON_TYPES.get(name, name) for name in match[2].split(" | ")]
        return f"{match[1]} {', '.join(names)} or {last}" if names else f"{match[1]} {last}"

    return _TYPES.sub(words, text[:1].lower() + text[1:])


def require_length(value: Sequence[object], most: int, param: str, unit: str) -> None:
    """Refuses a value of more than `most` units (characters, entries)."""
    if len(value) > most:
        raise invalid(f"{param} has {len(value)} {unit}, at most {most} are allowed", param)


def require_one_of(value: str | None, allowed: Sequence[str], param: str) -> None:
    """Refuses a text that is none of `allowed`; None is left to its default."""
    if value is not None and value not in allowed:
        raise invalid(f"{param} must be {' or '.join(allowed)}", param)


def require_depth(value: object, most: int, param: str) -> None:
    """Refuses a JSON value with more than `most` arrays and objects inside one another."""
    level, depth = [value], 0
    while containers := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > most:
            raise invalid(f"{param} is nested more than {most} levels deep", param)
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]


def refuse_later_features(body: object, off: dict[str, tuple[Any, ...]]) -> None:
    """Refuses each field of `off` whose value is none of the values that switch the feature off.

    null always does. Types count: `logprobs: 0` asks for something, `logprobs: false` does not.
    """
    for name, values in off.items():
        given = getattr(body, name)
        if given is None or any(type(given) is type(value) and given == value for value in values):
            continue
        allowed = " or ".join(msgspec.json.encode(value).decode() for value in values) or "null"
        raise unsupported(name, f"not supported; leave it out or set it to {allowed}")
