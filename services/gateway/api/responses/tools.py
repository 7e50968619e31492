"""`tools` and `tool_choice` of a response: functions without an object around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from services.gateway.api.tool_use import MAX_TOOLS, Choice, Function, FunctionName, ToolUse, choice_by_word
from services.gateway.errors import invalid, unsupported
from services.gateway.validation import convert

AnyTool = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/FunctionTool"})]
ResponseToolList = Annotated[list[AnyTool], Meta(max_length=MAX_TOOLS)]


class FunctionTool(msgspec.Struct):
    """`tools[i]`."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["function"]})]
    name: FunctionName
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ToolReference(msgspec.Struct):
    """`tool_choice.tools[i]`."""

    type: str
    name: str | None = None


class ResponseToolChoiceObject(msgspec.Struct):
    """`tool_choice` as an object: one function, or those that are allowed."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[ToolReference] | None = None


ResponseToolChoice = str | ResponseToolChoiceObject


def read_tools(given: Sequence[dict[str, Any]]) -> list[FunctionTool]:
    """The tools, checked. Those of other types are refused by name: ApiError 400."""
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(given)]


def _tool(given: dict[str, Any], param: str) -> FunctionTool:
    kind = given.get("type", "function")
    if kind != "function" and isinstance(kind, str):
        raise unsupported(f"{param}.type", f"{kind!r} is not supported, only 'function' is")
    return convert(given, FunctionTool, param)


def tool_use(tools: Sequence[FunctionTool], given: ResponseToolChoice | None, *, parallel: bool) -> ToolUse:
    """What a request says about tools. Raises ApiError 400."""
    functions = [
        Function(tool.name, tool.parameters, f"tools[{index}].name", f"tools[{index}].parameters")
        for index, tool in enumerate(tools)
    ]
    names = [tool.name for tool in tools]
    told, choice = list(zip(functions, tools, strict=True)), _choice(given, names)
    if isinstance(given, ResponseToolChoiceObject) and given.tools is not None:
        allowed = _allowed(given.tools, names)
        told = [(function, tool) for function, tool in told if function.name in allowed]
    chat_tools = [_chat_tool(tool) for _, tool in told]
    return ToolUse(chat_tools, [function for function, _ in told], choice, parallel=parallel)


def _choice(given: ResponseToolChoice | None, names: list[str]) -> Choice:
    if isinstance(given, ResponseToolChoiceObject):
        return _of_object(given, names)
    return choice_by_word(given, names, "an object")


def _of_object(given: ResponseToolChoiceObject, names: list[str]) -> Choice:
    match given.type:
        case "function":
            if given.name not in names:
                raise invalid("tool_choice.name must be the name of one of tools", "tool_choice.name")
            return Choice("named", given.name)
        case "allowed_tools":
            if not given.tools:
                raise invalid("tool_choice.tools is required: at least one tool", "tool_choice.tools")
            if given.mode not in ("auto", "required"):
                raise invalid("tool_choice.mode must be 'auto' or 'required'", "tool_choice.mode")
            return Choice("auto" if given.mode == "auto" else "required")
    reason = f"{given.type!r} is not supported, only 'function' and 'allowed_tools' are"
    raise unsupported("tool_choice.type", reason)


def _allowed(references: Sequence[ToolReference], names: list[str]) -> set[str]:
    """The names of the tools that the model may call: it is told of no others."""
    for index, reference in enumerate(references):
        if reference.type != "function" or reference.name not in names:
            param = f"tool_choice.tools[{index}].name"
            raise invalid(f"{param} must be the name of one of tools", param)
    return {str(reference.name) for reference in references}


def _chat_tool(tool: FunctionTool) -> dict[str, Any]:
    """In the form of chats, which the model's template knows."""
    given = {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    function = {"name": tool.name} | {name: value for name, value in given.items() if value is not None}
    return {"type": "function", "function": function}
