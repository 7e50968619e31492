"""In which formats a model writes tool calls and reasoning, read off its chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PYTHONIC = re.compile(r"\[func_name1\(|\[function_name\(|\bpythonic\b")
_THINK = "<think>"


@dataclass(frozen=True, slots=True)
class Formats:
    """Names as in `postroad.v1.RenderChatResponse`; empty where the template shows none that is known."""

    tool_calls: str = ""
    reasoning: str = ""


def formats_of(template: str, *, takes_tools: bool) -> Formats:
    """`takes_tools`: the template shows the tools to the model; for one that does not, the tokenizer itself does."""
    return Formats(
        tool_calls=_tool_calls(template) if takes_tools else "hermes",
        reasoning="think" if "</think>" in template or _THINK in template else "",
    )


def _tool_calls(template: str) -> str:
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template and "<function=" not in template:  # the latter is another format, in XML
        return "hermes"
    if _PYTHONIC.search(template):
        return "pythonic"
    if "<|python_tag|>" in template or ("ipython" in template and '"parameters"' in template):
        return "llama3_json"
    return ""


def is_reasoning_open(prompt: str) -> bool:
    """Whether the prompt ends inside reasoning: then the output begins there, without a tag."""
    return prompt.rstrip().endswith(_THINK)
