"""`tools`, `tool_choice` and `parallel_tool_calls` of a chat completion."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from services.gateway.api.tool_use import MAX_TOOLS, Choice, Function, FunctionName, ToolUse, choice_by_word
from services.gateway.errors import invalid, unsupported
from services.gateway.validation import convert

# The template reads fields that nobody here knows.
AnyTool = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Tool"})]
ToolList = Annotated[list[AnyTool], Meta(max_length=MAX_TOOLS)]
OnlyFunction = Annotated[str, Meta(extra_json_schema={"enum": ["function"]})]


class FunctionDefinition(msgspec.Struct):
    """`tools[i].function`."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """`tools[i]`."""

    type: OnlyFunction
    function: FunctionDefinition | None = None


class FunctionChoice(msgspec.Struct):
    """`tool_choice.function`."""

    name: str


class NamedToolChoice(msgspec.Struct):
    """`tool_choice` as an object."""

    type: OnlyFunction
    function: FunctionChoice | None = None


ToolChoice = Annotated[str, Meta(extra_json_schema={"enum": ["none", "auto", "required"]})] | NamedToolChoice


class ToolFields(Protocol):
    """A body with tools."""

    tools: list[dict[str, Any]] | None
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool | None


def tool_use(body: ToolFields) -> ToolUse:
    """What a request says about tools. Raises ApiError 400."""
    functions = _functions(body.tools)
    choice = _choice(body.tool_choice, [function.name for function in functions])
    return ToolUse(body.tools, functions, choice, parallel=body.parallel_tool_calls is not False)


def prompt_tools(tools: list[dict[str, Any]] | None) -> str | None:
    """Tools for a prompt alone, as the tokenizer takes them; None for none. Checked as a chat's: ApiError 400."""
    return ToolUse(tools, _functions(tools), Choice("auto"), parallel=True).json if tools else None


def _functions(tools: list[dict[str, Any]] | None) -> list[Function]:
    return [_function(given, f"tools[{index}]") for index, given in enumerate(tools or ())]


def _function(given: dict[str, Any], param: str) -> Function:
    tool = convert(given, Tool, param)
    if tool.type != "function":
        raise unsupported(f"{param}.type", f"{tool.type!r} is not supported, only 'function' is")
    if tool.function is None:
        raise invalid(f"{param}.function is required", f"{param}.function")
    function = tool.function
    return Function(function.name, function.parameters, f"{param}.function.name", f"{param}.function.parameters")


def _choice(given: ToolChoice | None, names: list[str]) -> Choice:
    if given is None or isinstance(given, str):
        return choice_by_word(given, names, "name a function")
    if given.type != "function":
        raise unsupported("tool_choice.type", f"{given.type!r} is not supported, only 'function' is")
    if given.function is None or given.function.name not in names:
        raise invalid("tool_choice.function.name must be the name of one of tools", "tool_choice.function.name")
    return Choice("named", given.function.name)
