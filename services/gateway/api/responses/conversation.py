"""`instructions` and `input` → messages in the form of chats, which the tokenizer takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.gateway.api.responses.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    read_item,
    texts_of,
)
from services.gateway.errors import invalid, unsupported


@dataclass(slots=True)
class _Message:
    """One message for the template. `param`: the field of the client that it begins with."""

    role: str
    param: str
    texts: list[str] | None = None
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    of_call: dict[str, Any] = field(default_factory=dict)  # which call an output is of

    def as_json(self) -> dict[str, Any]:
        """Several texts stay parts: how they are joined is the template's."""
        texts = self.texts or []
        parts = [{"type": "text", "text": text} for text in texts]
        message: dict[str, Any] = {"role": self.role, "content": parts if len(parts) > 1 else "".join(texts)}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message | self.of_call


class Conversation:
    """The messages of a request. Raises ApiError 400 that names the item at fault.

    What a model said in one turn is several items here and one message there: reasoning, then text, then calls.
    """

    def __init__(self, instructions: str | None, given: str | list[dict[str, Any]]) -> None:
        self._messages: list[_Message] = []
        self._functions: dict[str, str] = {}  # names by the ids of their calls
        if instructions is not None:
            self._messages.append(_Message("system", "instructions", [instructions]))
        if isinstance(given, str):
            self._messages.append(_Message("user", "input", [given]))
            return
        for index, item in enumerate(given):
            param = f"input[{index}]"
            self._add(read_item(item, param), param)

    @property
    def messages_json(self) -> str:
        """The messages as the tokenizer takes them."""
        return msgspec.json.encode([message.as_json() for message in self._messages]).decode()

    @property
    def fields(self) -> dict[str, str]:
        """Where the client has each message, by its place in `messages_json`."""
        return {f"messages[{index}]": message.param for index, message in enumerate(self._messages)}

    def _add(self, item: Item, param: str) -> None:
        match item:
            case MessageItem():
                self._add_message(item, param)
            case ReasoningItem():
                self._add_reasoning(item, param)
            case FunctionCallItem():
                self._functions[item.call_id] = item.name
                function = {"name": item.name, "arguments": item.arguments}
                self._turn(param).calls.append({"id": item.call_id, "type": "function", "function": function})
            case FunctionCallOutputItem():
                self._add_output(item, param)

    def _add_message(self, item: MessageItem, param: str) -> None:
        texts = texts_of(item.content, f"{param}.content")
        if item.role != "assistant":
            self._messages.append(_Message(item.role, param, texts))
            return
        turn = self._turn(param)
        if turn.texts is not None or turn.calls:
            turn = self._new_turn(param)
        turn.texts = texts

    def _add_reasoning(self, item: ReasoningItem, param: str) -> None:
        if item.encrypted_content is not None:
            raise unsupported(f"{param}.encrypted_content", "not supported; leave it out or set it to null")
        name = "content" if item.content else "summary"
        turn = self._turn(param)
        if turn.texts is not None or turn.calls:
            turn = self._new_turn(param)
        turn.reasoning += texts_of(getattr(item, name) or [], f"{param}.{name}")

    def _add_output(self, item: FunctionCallOutputItem, param: str) -> None:
        name = self._functions.get(item.call_id)
        if name is None:
            where = f"{param}.call_id"
            raise invalid(f"{where}: no function_call before it has the call_id {item.call_id!r}", where)
        texts = texts_of(item.output, f"{param}.output")
        of_call = {"tool_call_id": item.call_id, "name": name}
        self._messages.append(_Message("tool", param, texts, of_call=of_call))

    def _turn(self, param: str) -> _Message:
        """The model's turn that goes on, or a new one."""
        last = self._messages[-1] if self._messages else None
        return last if last is not None and last.role == "assistant" else self._new_turn(param)

    def _new_turn(self, param: str) -> _Message:
        self._messages.append(_Message("assistant", param))
        return self._messages[-1]
