"""How the text of a chat's answer is read: reasoning, tool calls and content in the model's own formats."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.gateway.api.answers import Reading
from services.gateway.api.tool_use import ToolUse
from services.gateway.formats.reasoning import ThinkReader
from services.gateway.prompts import ChatFormats


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """The formats that the settings name; `auto` is the model's own, `none` is none."""

    tool_calls: str
    reasoning: str

    def reading(self, tools: ToolUse, formats: ChatFormats) -> Reading:
        """Reasoning before the answer, and tool calls in it. `formats`: the model's own.

        A forced call comes without reasoning: the form leaves no room for it.
        """
        reader = tools.reader(_chosen(self.tool_calls, formats.tool_calls))
        if tools.form is None and _chosen(self.reasoning, formats.reasoning):
            return replace(
                reader,
                make_reader=lambda: ThinkReader(reader.make_reader(), inside=formats.reasoning_open),
                token_offsets=True,
            )
        return reader


def _chosen(setting: str, of_model: str) -> str:
    """The name of a format; empty for none."""
    return {"auto": of_model, "none": ""}.get(setting, setting)
