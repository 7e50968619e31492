"""A field that holds one prompt or several, as texts or as token ids: OpenAI's `prompt` and `input`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from services.gateway.api.parameters import TokenId
from services.gateway.errors import invalid
from services.gateway.prompts import IdsPrompts, TextPrompts
from services.gateway.validation import require_length

T = TypeVar("T")

PromptField = str | list[str | TokenId | list[TokenId]]


def prompts_schema(most: int) -> dict[str, Any]:
    """The JSON Schema of what `given_prompts` takes."""
    text = {"type": "string", "minLength": 1}
    ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
    several = [{"type": "array", "minItems": 1, "maxItems": most, "items": each} for each in (text, ids)]
    return {"oneOf": [text, ids, *several]}


def given_prompts(
    given: PromptField, field: str, most: int, add_special_tokens: bool | None
) -> TextPrompts | IdsPrompts:
    """The prompts of a string, a list of strings, token ids, or a list of lists of token ids: at most `most`.

    Raises ApiError 400.
    """
    if not given:
        raise invalid(f"{field} must not be empty", field)
    if isinstance(given, str):
        return TextPrompts([given], add_special_tokens)
    if isinstance(given[0], int):
        return IdsPrompts([_of_type(int, given, field, "a token id")])
    require_length(given, most, field, "prompts")
    for index, prompt in enumerate(given):
        if prompt in ("", []):
            raise invalid(f"{field}[{index}] must not be empty", f"{field}[{index}]")
    if isinstance(given[0], str):
        return TextPrompts(_of_type(str, given, field, "a string"), add_special_tokens)
    return IdsPrompts(_of_type(list, given, field, "an array of token ids"))


def require_tokens(prompt_ids: Sequence[list[int]], field: str) -> None:
    """Refuses a text of which the tokenizer makes no token."""
    for index, ids in enumerate(prompt_ids):
        if not ids:
            param = field if len(prompt_ids) == 1 else f"{field}[{index}]"
            raise invalid(f"{param} must not be empty: it has no tokens", param)


def _of_type(kind: type[T], entries: Sequence[object], param: str, what: str) -> list[T]:
    """The entries, all of one type: that of the first one."""
    checked = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, kind):
            raise invalid(f"{param}[{index}] must be {what} as the entries before it", f"{param}[{index}]")
        checked.append(entry)
    return checked
