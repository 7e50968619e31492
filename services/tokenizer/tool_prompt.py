"""Tools for models whose chat template does not know them: told in the system message, in Hermes' format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from services.tokenizer.chat import Chat

_INTRODUCTION = """\
You can call functions. These are the functions, with their parameters as JSON Schemas:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as a JSON object inside tool_call tags:
<tool_call>
{{"name": "the function's name", "arguments": {{"the parameter's name": "its value"}}}}
</tool_call>
The result comes back inside tool_response tags. Call a function only when it helps; otherwise answer as usual."""


def with_tools_told(chat: Chat) -> Chat:
    """The chat with its tools in the system message, and calls and results of earlier turns as text."""
    messages = _merged(_as_text(message) for message in chat.messages)
    if chat.tools:
        tools = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in chat.tools)
        introduction = _INTRODUCTION.format(tools=tools)
        if messages and messages[0]["role"] in ("system", "developer"):
            first = messages.pop(0)
            introduction = f"{_text(first['content'])}\n\n{introduction}"
        messages.insert(0, {"role": "system", "content": introduction})
    return replace(chat, messages=messages, tools=None)


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{_text(message['content'])}\n</tool_response>"}
    if calls := message.get("tool_calls"):
        written = [f"<tool_call>\n{json.dumps(_call(call), ensure_ascii=False)}\n</tool_call>" for call in calls]
        text = _text(message["content"])
        return {"role": message["role"], "content": "\n".join([text, *written] if text else written)}
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    known = function if isinstance(function, dict) else {}
    return {"name": known.get("name", ""), "arguments": known.get("arguments", {})}


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _merged(messages: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several results in a row become one message: templates want turns to alternate."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is not None and last["role"] == message["role"] == "user" and _is_result(last) and _is_result(message):
            merged[-1] = {"role": "user", "content": f"{last['content']}\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def _is_result(message: dict[str, Any]) -> bool:
    return isinstance(message["content"], str) and message["content"].startswith("<tool_response>")
