"""What a request says about tools, whatever its API: what the model is shown, what forces a call, and how the answer is
read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from services.gateway.api.answers import Reading
from services.gateway.errors import invalid
from services.gateway.formats.forced import CallArrayReader, NamedCallReader
from services.gateway.formats.registry import TOOL_FORMATS
from services.gateway.forms import OutputForm
from services.gateway.parts import Part, PartReader, TextReader, ToolCallArguments, ToolCallStart
from services.gateway.validation import require_depth

MAX_TOOLS = 128  # OpenAI's
MAX_TOOLS_DEPTH = 32

FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call. `parameters` is a JSON Schema.

    `name_param` and `schema_param` are the client's fields that name it and have its schema.
    """

    name: str
    parameters: dict[str, Any] | None
    name_param: str
    schema_param: str

    @property
    def schema(self) -> dict[str, Any]:
        """That of its arguments."""
        return self.parameters or {"type": "object", "properties": {}, "additionalProperties": False}

    @property
    def call_schema(self) -> dict[str, Any]:
        """That of a call: name and arguments. The `$id` keeps a `$ref` within the arguments' own schema.

        Without its `$schema`: before 2019 an `$id` did not count beside a `$ref`, and draft 4 does not know it.
        """
        own = {key: value for key, value in self.schema.items() if key != "$schema"}
        arguments = {"$id": f"urn:function:{self.name}", **own}
        return {
            "type": "object",
            "properties": {"name": {"const": self.name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether the model calls functions. `required`: at least one; `named`: the one called `name`."""

    mode: Literal["none", "auto", "required", "named"]
    name: str = ""


def tools_json(tools: Sequence[dict[str, Any]] | None) -> str | None:
    """Tools in OpenAI's form as the tokenizer takes them; None for none."""
    require_depth(tools, MAX_TOOLS_DEPTH, "tools")
    return msgspec.json.encode(tools).decode() if tools else None


def choice_by_word(word: str | None, names: Sequence[str], otherwise: str) -> Choice:
    """`tool_choice` in a word, or left out. `otherwise`: what else it may be. Raises ApiError 400."""
    match word:
        case None:
            return Choice("auto" if names else "none")
        case "required" if not names:
            raise invalid("tool_choice: 'required' needs tools", "tool_choice")
        case "none" | "auto" | "required":
            return Choice(word)
    raise invalid(f"tool_choice must be 'none', 'auto', 'required', or {otherwise}", "tool_choice")


class ToolUse:
    """The tools of one request, checked. Raises ApiError 400.

    `tools`: in OpenAI's form, one for each of `functions`. `parallel`: more than one call may be made.
    `json`: the tools for the prompt, None for none. `form`: what makes the model call a function where it has to.
    """

    def __init__(
        self, tools: Sequence[dict[str, Any]] | None, functions: Sequence[Function], choice: Choice, *, parallel: bool
    ) -> None:
        self._functions = functions
        names = [function.name for function in functions]
        for index, function in enumerate(functions):
            if function.name in names[:index]:
                raise invalid(f"{function.name_param}: {function.name!r} is another tool's, too", function.name_param)
        self._choice = choice
        self._parallel = parallel
        self.json = None if choice.mode == "none" else tools_json(tools)
        self.form = self._make_form()

    def _make_form(self) -> OutputForm | None:
        match self._choice.mode:
            case "named":
                (function,) = [function for function in self._functions if function.name == self._choice.name]
                return _schema_form(function.schema, function.schema_param)
            case "required":
                calls = [function.call_schema for function in self._functions]
                array: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
                params = [function.schema_param for function in self._functions]
                places = {f"/items/anyOf/{index}/properties/arguments": param for index, param in enumerate(params)}
                return _schema_form(array if self._parallel else {**array, "maxItems": 1}, "tools", places)
        return None

    def form_beside(self, wanted: OutputForm | None) -> OutputForm | None:
        """The form that other fields want, or that the choice needs; ApiError 400 for both."""
        if wanted is not None and self.form is not None:
            raise invalid(f"{wanted.param} cannot be used together with this tool_choice", wanted.param)
        return wanted or self.form

    def reader(self, format_name: str) -> Reading:
        """What finds the calls in the text. `format_name`: the model's format; empty for none."""
        match self._choice.mode:
            case "named":
                return Reading(partial(NamedCallReader, self._choice.name))
            case "required":
                return Reading(CallArrayReader)
        if self.json is None or not format_name:
            return Reading(TextReader)
        found = TOOL_FORMATS[format_name]
        make = found.reader if self._parallel else lambda: FirstCallReader(found.reader())
        return Reading(make, found.special_tokens)


class FirstCallReader:
    """Leaves out all calls but the first: parallel calls are switched off."""

    def __init__(self, reader: PartReader) -> None:
        self._reader = reader

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        return [part for part in self._reader.read(text) if not _is_later_call(part)]

    def close(self) -> Sequence[Part]:
        """What was held back; the text has ended."""
        return [part for part in self._reader.close() if not _is_later_call(part)]

    def finish_reason(self, reason: str) -> str:
        """As with all calls."""
        return self._reader.finish_reason(reason)


def _is_later_call(part: Part) -> bool:
    return isinstance(part, ToolCallStart | ToolCallArguments) and part.call > 0


def _schema_form(schema: dict[str, Any], param: str, parts: Mapping[str, str] | None = None) -> OutputForm:
    return OutputForm("json_schema", param, msgspec.json.encode(schema).decode(), parts=parts or {})
