"""The items of `input`: messages, calls of functions with their outputs, and reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from services.gateway.errors import invalid, unsupported
from services.gateway.validation import convert

TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


class ItemPart(msgspec.Struct):
    """A part of an item; only text is supported."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(TEXT_PARTS)})]
    text: str | None = None
    refusal: str | None = None


Texts = str | list[ItemPart]


class MessageItem(msgspec.Struct):
    """A message. Clients may leave its type out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Texts
    type: Literal["message"] | None = None


class FunctionCallItem(msgspec.Struct):
    """A call that the model made; `arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: Annotated[str, Meta(min_length=1)]
    name: str
    arguments: str


class FunctionCallOutputItem(msgspec.Struct):
    """What a call returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class ReasoningItem(msgspec.Struct):
    """What the model thought. The summary stands in where there is no content."""

    type: Literal["reasoning"]
    content: list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    encrypted_content: str | None = None


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem

ITEM_TYPES: Mapping[str, type[Item]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}


def read_item(given: dict[str, Any], param: str) -> Item:
    """An item, checked. `param`: its place. Raises ApiError 400, which names a type that is not supported."""
    kind = given.get("type") or ("message" if "role" in given else None)
    if kind is None:
        raise invalid(f"{param}.type is required", f"{param}.type")
    found = ITEM_TYPES.get(kind) if isinstance(kind, str) else None
    if found is None:
        known = ", ".join(map(repr, ITEM_TYPES))
        raise unsupported(f"{param}.type", f"{kind!r} is not supported, only {known} are")
    return convert(given, found, param)


def texts_of(given: Texts, param: str) -> list[str]:
    """The texts of a string, or of parts. Raises ApiError 400."""
    if isinstance(given, str):
        return [given]
    return [_text(part, f"{param}[{index}]") for index, part in enumerate(given)]


def _text(part: ItemPart, param: str) -> str:
    if part.type not in TEXT_PARTS:
        raise unsupported(f"{param}.type", f"{part.type!r} is not supported, only text is")
    name, text = ("refusal", part.refusal) if part.type == "refusal" else ("text", part.text)
    if text is None:
        raise invalid(f"{param}.{name} must be a string", f"{param}.{name}")
    return text
