"""`tools` and `tool_choice` of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from services.gateway.api.tool_use import MAX_TOOLS, Choice, Function, ToolUse
from services.gateway.errors import invalid, unsupported

ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class ToolDefinition(msgspec.Struct):
    """`tools[i]`: one of the client's own."""

    name: ToolName
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None


class AutoChoice(msgspec.Struct, tag_field="type", tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(msgspec.Struct, tag_field="type", tag="any"):
    """The model uses a tool, whichever it is."""

    disable_parallel_tool_use: bool | None = None


class NamedChoice(msgspec.Struct, tag_field="type", tag="tool"):
    """The model uses this tool."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(msgspec.Struct, tag_field="type", tag="none"):
    """The model uses no tool."""


ToolList = Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)]
ToolChoice = AutoChoice | AnyChoice | NamedChoice | NoChoice


def tool_use(tools: Sequence[ToolDefinition], choice: ToolChoice | None) -> ToolUse:
    """What a request says about tools. Raises ApiError 400."""
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    parallel = isinstance(choice, NoChoice | None) or not choice.disable_parallel_tool_use
    chosen = _choice(choice, [function.name for function in functions])
    return ToolUse([_in_openais_form(tool) for tool in tools], functions, chosen, parallel=parallel)


def _function(tool: ToolDefinition, param: str) -> Function:
    if tool.type not in (None, "custom"):
        raise unsupported(f"{param}.type", f"{tool.type!r} is not supported, only 'custom' is")
    if tool.input_schema is None:
        raise invalid(f"{param}.input_schema is required: a JSON Schema", f"{param}.input_schema")
    return Function(tool.name, tool.input_schema, f"{param}.name", f"{param}.input_schema")


def _in_openais_form(tool: ToolDefinition) -> dict[str, Any]:
    description = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {"name": tool.name, **description, "parameters": tool.input_schema}}


def _choice(given: ToolChoice | None, names: list[str]) -> Choice:
    match given:
        case None:
            return Choice("auto" if names else "none")
        case AutoChoice():
            return Choice("auto")
        case NoChoice():
            return Choice("none")
        case AnyChoice():
            if not names:
                raise invalid("tool_choice: 'any' needs tools", "tool_choice")
            return Choice("required")
        case NamedChoice():
            if given.name not in names:
                raise invalid("tool_choice.name must be the name of one of tools", "tool_choice.name")
            return Choice("named", given.name)
