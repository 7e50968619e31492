"""A chat request's JSON, checked before a template sees it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

from services.common.errors import InvalidArgument

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True)
class Chat:
    """What a chat template renders.

    Every message has a role of `ROLES` and a `content` that is a string or a list of text parts
    (`{"type": "text", "text": …}`).
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True


def parse_chat(
    messages_json: str,
    tools_json: str | None = None,
    template_kwargs_json: str | None = None,
    add_generation_prompt: bool = True,
) -> Chat:
    """Reads the three JSON documents of a chat request. Raises InvalidArgument that names the place at fault."""
    messages = _parse_json(messages_json, "messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidArgument("messages: must be a list with at least one message", "messages")
    return Chat(
        messages=[_check_message(message, f"messages[{index}]") for index, message in enumerate(messages)],
        tools=None if tools_json is None else _check_tools(_parse_json(tools_json, "tools")),
        template_kwargs={} if template_kwargs_json is None else _check_kwargs(template_kwargs_json),
        add_generation_prompt=add_generation_prompt,
    )


def _parse_json(text: str, name: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        # "\ud83d" alone is valid JSON, but no text: neither UTF-8 nor a tokenizer can take it.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name}: holds half of a surrogate pair, which is not a character", name) from None
    except RecursionError:
        raise InvalidArgument(f"{name}: is nested too deeply", name) from None
    except (json.JSONDecodeError, _NotJson) as error:
        raise InvalidArgument(f"{name}: is not valid JSON: {error}", name) from None
    except ValueError:  # Python's own words are about how to switch its limit off
        digits = sys.get_int_max_str_digits()
        raise InvalidArgument(f"{name}: holds an integer of more than {digits} digits", name) from None
    return value


class _NotJson(ValueError):
    """A value that Python's parser would take."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotJson(f"{name} is not a JSON value")


def _check_message(message: Any, name: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidArgument(f"{name}: must be an object", name)
    role = message.get("role")
    if role not in ROLES:
        # A role goes into the prompt between control tokens: free text there could forge a turn.
        raise InvalidArgument(f"{name}.role: must be one of {', '.join(ROLES)}", f"{name}.role")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""  # an assistant's message may hold tool calls alone
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(part, f"{name}.content[{index}]")
    elif not isinstance(content, str):
        raise InvalidArgument(f"{name}.content: must be a string or a list of text parts", f"{name}.content")
    checked = {**message, "content": content}
    if message.get("tool_calls") is not None:
        checked["tool_calls"] = _check_tool_calls(message["tool_calls"], f"{name}.tool_calls")
    return checked


def _check_part(part: Any, name: str) -> None:
    if not isinstance(part, dict):
        raise InvalidArgument(f"{name}: must be an object", name)
    if part.get("type") != "text":
        raise InvalidArgument(f"{name}.type: {part.get('type')!r} is not supported; only 'text' is", f"{name}.type")
    if not isinstance(part.get("text"), str):
        raise InvalidArgument(f"{name}.text: must be a string", f"{name}.text")


def _check_tool_calls(calls: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidArgument(f"{name}: must be a list of objects", name)
    return [_with_parsed_arguments(call) for call in calls]


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's API has a call's arguments as a JSON string; templates write them as JSON and expect the object."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = _parse_json(function["arguments"], "arguments")
    except InvalidArgument:
        return call  # a model wrote it; the template gets what the model wrote
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _check_tools(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise InvalidArgument("tools: must be a list", "tools")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise InvalidArgument(f"tools[{index}]: must be an object", f"tools[{index}]")
    return tools


def _check_kwargs(text: str) -> dict[str, Any]:
    kwargs = _parse_json(text, "template_kwargs")
    if not isinstance(kwargs, dict):
        raise InvalidArgument("template_kwargs: must be an object", "template_kwargs")
    return kwargs
