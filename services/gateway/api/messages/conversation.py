"""Anthropic's messages → messages in the form of OpenAI's chats, which the tokenizer takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from services.gateway.api.messages.blocks import (
    Block,
    MessageTurn,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    texts_of,
)
from services.gateway.errors import invalid, unsupported

_ERROR_MARK = "Error: "  # how the model is told that a tool failed: templates have no word for it
_ALLOWED: dict[str, tuple[type[Block], ...]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}


@dataclass(slots=True)
class _Turn:
    """One message for the template."""

    role: Literal["user", "assistant", "system", "tool"]
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    of_call: dict[str, Any] = field(default_factory=dict)  # which call a result is of

    def as_json(self) -> dict[str, Any]:
        """Several texts stay parts: how they are joined is the template's."""
        parts = [{"type": "text", "text": text} for text in self.texts]
        content = parts if len(parts) > 1 else "".join(self.texts)
        message: dict[str, Any] = {"role": self.role, "content": content, **self.of_call}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Conversation:
    """The turns so far, and the calls that results may be of."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._tools: dict[str, str] = {}  # names by the ids of their calls

    def system(self, texts: list[str]) -> None:
        """The system prompt."""
        self._turn("system").texts += texts

    def add(self, message: MessageTurn, param: str) -> None:
        """One of the client's messages; `param` is its place."""
        if isinstance(message.content, str):
            self._turn(message.role).texts.append(message.content)
            return
        self._turn(message.role)  # also without a block
        for index, block in enumerate(message.content):
            where = f"{param}.content[{index}]"
            if not isinstance(block, _ALLOWED[message.role]):
                kind = block.__struct_config__.tag
                raise invalid(f"{where}.type: {kind!r} is not for a message of role {message.role!r}", f"{where}.type")
            self._add_block(block, message.role, where)

    def _add_block(self, block: Block, role: Literal["user", "assistant", "system"], where: str) -> None:
        match block:
            case TextBlock():
                self._turn(role).texts.append(block.text)
            case ThinkingBlock():
                self._turn(role).reasoning.append(block.thinking)
            case ToolUseBlock():
                if not bytes(block.input).startswith(b"{"):
                    raise invalid(f"{where}.input must be an object", f"{where}.input")
                self._tools[block.id] = block.name
                function = {"name": block.name, "arguments": block.input}
                self._turn(role).calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                self._add_result(block, where)

    def _add_result(self, block: ToolResultBlock, where: str) -> None:
        name = self._tools.get(block.tool_use_id)
        if name is None:
            param = f"{where}.tool_use_id"
            raise invalid(f"{param}: no tool_use block before it has the id {block.tool_use_id!r}", param)
        texts = texts_of(block.content)
        if block.is_error:
            texts = [_ERROR_MARK + "".join(texts[:1]), *texts[1:]]
        if self.turns[-1] == _Turn("user"):
            self.turns.pop()  # the results are all that the user's message has so far
        self.turns.append(_Turn("tool", texts, of_call={"tool_call_id": block.tool_use_id, "name": name}))

    def _turn(self, role: Literal["user", "assistant", "system"]) -> _Turn:
        """The turn that goes on: a new one, unless the last one is of this role."""
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(role))
        return self.turns[-1]


def messages_json(system: str | list[TextBlock] | None, messages: Sequence[MessageTurn]) -> str:
    """The messages as the tokenizer takes them. Raises ApiError 400."""
    if not messages:
        raise invalid("messages must have at least one message", "messages")
    if messages[-1].role == "assistant":
        param = f"messages[{len(messages) - 1}].role"
        raise unsupported(param, "the last message is the assistant's; to continue it is not supported")
    conversation = _Conversation()
    if texts := texts_of(system):
        conversation.system(texts)
    for index, message in enumerate(messages):
        conversation.add(message, f"messages[{index}]")
    try:
        return msgspec.json.encode([turn.as_json() for turn in conversation.turns]).decode()
    except UnicodeDecodeError:  # in a tool's input, which nobody has read here
        raise invalid("messages must be valid UTF-8", "messages") from None
