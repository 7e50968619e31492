"""What messages are made of: the content blocks that a request may have."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: Any = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning of an earlier turn. Its signature is not checked."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Reasoning that only the server which wrote it can read."""

    data: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool in an earlier turn. `input` is JSON text: an object."""

    id: Annotated[str, Meta(min_length=1)]
    name: Annotated[str, Meta(min_length=1)]
    input: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
    cache_control: Any = None


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    """What came of a call."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: Any = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class MessageTurn(msgspec.Struct):
    """A turn, or a part of one: turns of the same role in a row are one."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


def texts_of(content: str | list[TextBlock] | None) -> list[str]:
    """The texts of content that is text alone."""
    if content is None:
        return []
    return [content] if isinstance(content, str) else [block.text for block in content]
