"""`tools`, `tool_choice` and `parallel_tool_calls` of a chat: what is checked, and how the answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from services.gateway.api.answers import Reading
from services.gateway.errors import invalid, unsupported
from services.gateway.formats.forced import CallArrayReader, NamedCallReader
from services.gateway.formats.registry import TOOL_FORMATS
from services.gateway.forms import OutputForm
from services.gateway.parts import Part, PartReader, TextReader, ToolCallArguments, ToolCallStart
from services.gateway.validation import convert, require_depth

MAX_TOOLS = 128  # OpenAI's
MAX_TOOLS_DEPTH = 32

ToolList = Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)]
FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class FunctionDefinition(msgspec.Struct):
    """`tools[i].function`."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """`tools[i]`."""

    type: str
    function: FunctionDefinition | None = None


class FunctionChoice(msgspec.Struct):
    """`tool_choice.function`."""

    name: str


class NamedToolChoice(msgspec.Struct):
    """`tool_choice` as an object."""

    type: str
    function: FunctionChoice | None = None


ToolChoice = str | NamedToolChoice


class ToolFields(Protocol):
    """A body with tools."""

    tools: list[dict[str, Any]] | None
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool | None


def tools_json(tools: list[dict[str, Any]] | None) -> str | None:
    """The tools as the tokenizer takes them; None for none."""
    require_depth(tools, MAX_TOOLS_DEPTH, "tools")
    return msgspec.json.encode(tools).decode() if tools else None


class ToolUse:
    """What a request says about tools, checked. Raises ApiError 400.

    `json`: the tools for the prompt, None for none. `form`: what makes the model call a function where it has to.
    """

    def __init__(self, body: ToolFields) -> None:
        self._tools = [_tool(given, f"tools[{index}]") for index, given in enumerate(body.tools or ())]
        names = [tool.name for tool in self._tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise invalid(
                    f"tools[{index}].function.name: {name!r} is another tool's, too", f"tools[{index}].function.name"
                )
        self._choice = _choice(body.tool_choice, names)
        self._parallel = body.parallel_tool_calls is not False
        self.json = None if self._choice == "none" else tools_json(body.tools)
        self.form = self._make_form()

    def _make_form(self) -> OutputForm | None:
        match self._choice:
            case NamedToolChoice(function=FunctionChoice(name=name)):
                (tool,) = [tool for tool in self._tools if tool.name == name]
                return _schema_form(_parameters(tool), f"tools[{self._tools.index(tool)}].function.parameters")
            case "required":
                calls = [_call_schema(tool) for tool in self._tools]
                array: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
                return _schema_form(array if self._parallel else {**array, "maxItems": 1}, "tools")
        return None

    def reader(self, format_name: str) -> Reading:
        """What finds the calls in the text. `format_name`: the model's format; empty for none."""
        match self._choice:
            case NamedToolChoice(function=FunctionChoice(name=name)):
                return Reading(partial(NamedCallReader, name))
            case "required":
                return Reading(CallArrayReader)
        if self.json is None or not format_name:
            return Reading(TextReader)
        found = TOOL_FORMATS[format_name]
        make = found.reader if self._parallel else lambda: FirstCallReader(found.reader())
        return Reading(make, found.special_tokens)


class FirstCallReader:
    """Leaves out all calls but the first: `parallel_tool_calls: false`."""

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


def _tool(given: dict[str, Any], param: str) -> FunctionDefinition:
    tool = convert(given, Tool, param)
    if tool.type != "function":
        raise unsupported(f"{param}.type", f"{tool.type!r} is not supported, only 'function' is")
    if tool.function is None:
        raise invalid(f"{param}.function is required", f"{param}.function")
    return tool.function


def _choice(given: ToolChoice | None, names: list[str]) -> ToolChoice:
    if given is None:
        return "auto" if names else "none"
    if isinstance(given, str):
        if given not in ("none", "auto", "required"):
            raise invalid("tool_choice must be 'none', 'auto', 'required', or name a function", "tool_choice")
        if given == "required" and not names:
            raise invalid("tool_choice: 'required' needs tools", "tool_choice")
        return given
    if given.type != "function":
        raise unsupported("tool_choice.type", f"{given.type!r} is not supported, only 'function' is")
    if given.function is None or given.function.name not in names:
        raise invalid("tool_choice.function.name must be the name of one of tools", "tool_choice.function.name")
    return given


def _parameters(tool: FunctionDefinition) -> dict[str, Any]:
    return tool.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


def _call_schema(tool: FunctionDefinition) -> dict[str, Any]:
    properties = {"name": {"const": tool.name}, "arguments": _parameters(tool)}
    return {
        "type": "object",
        "properties": properties,
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _schema_form(schema: dict[str, Any], param: str) -> OutputForm:
    return OutputForm("json_schema", param, msgspec.json.encode(schema).decode())
