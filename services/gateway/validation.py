"""Request bodies → checked values. Every refusal names the field and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from services.gateway.errors import ApiError, invalid, unsupported

T = TypeVar("T")

# msgspec ends its messages with the place, for instance "… - at `$.stop[0]`" or "… - at `key` in `$.logit_bias`".
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")


def decode(decoder: msgspec.json.Decoder[T], data: bytes, field: str = "") -> T:
    """The typed value of JSON text; ApiError 400 when it is none. `field`: where in the body the text stands."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), field) from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the request body is nested too deeply", code="invalid_json") from None


def _wrong_field(text: str, field: str) -> ApiError:
    place = _PLACE.search(text)
    if place is None:
        return invalid(f"{field or 'the request body'}: {_lower_first(text)}", field or None)
    inner = place[1].removesuffix("[...]")
    joint = "." if field and inner and not inner.startswith("[") else ""
    param = f"{field}{joint}{inner}"
    return invalid(f"{param}: {_lower_first(text[: place.start()])}", param)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def require_length(value: Sequence[object], most: int, param: str, unit: str) -> None:
    """Refuses a value of more than `most` units (characters, entries)."""
    if len(value) > most:
        raise invalid(f"{param} has {len(value)} {unit}, at most {most} are allowed", param)


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
