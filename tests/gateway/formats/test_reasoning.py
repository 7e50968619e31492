"""Think tags, cut at every place, alone and before tool calls."""

from __future__ import annotations

import pytest

from services.gateway.formats.hermes import HermesReader
from services.gateway.formats.reasoning import ThinkReader, ThoughtTokens
from services.gateway.parts import TextReader
from tests.gateway.formats.reading import read_every_way

SAMPLES = [
    (False, "<think>\nFirst this.\n\nThen that.\n</think>\n\nThe answer.", "First this.\n\nThen that.", "The answer."),
    (True, "First this.\n</think>\n\nThe answer.\n", "First this.", "The answer.\n"),
    (False, "\n<think></think>Plain.", "", "Plain."),
    (False, "No thought at all.", "", "No thought at all."),
    (False, " <thin air>", "", " <thin air>"),
    (True, "never ends ", "never ends", ""),
    (False, "<think>a </thin b</think>c</think>d", "a </thin b", "c</think>d"),
    (False, "<think>", "", ""),
    (False, "<thi", "", "<thi"),
    (False, "", "", ""),
]


@pytest.mark.parametrize(("inside", "text", "reasoning", "content"), SAMPLES)
def test_reasoning_and_content(inside: bool, text: str, reasoning: str, content: str) -> None:
    result = read_every_way(lambda: ThinkReader(TextReader(), inside=inside), text)
    assert (result.reasoning, result.content, result.finish_reason) == (reasoning, content, "stop")


def test_a_call_after_reasoning() -> None:
    text = '<think>I need a <tool_call>.</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    result = read_every_way(lambda: ThinkReader(HermesReader(), inside=False), text)
    assert result.reasoning == "I need a <tool_call>."
    assert result.calls == [("now", "{}")]
    assert result.content == ""
    assert result.finish_reason == "tool_calls"


@pytest.mark.parametrize(("inside", "text", "reasoning", "content"), SAMPLES)
def test_the_tokens_of_a_thought_begin_before_its_closing_tag_ends(
    inside: bool, text: str, reasoning: str, content: str
) -> None:
    """However the text comes; tokens are of two characters here, and the end of sequence begins behind the text."""
    begins = [*range(0, len(text), 2), len(text)]
    thought = text[: text.index("</think>") + len("</think>")] if "</think>" in text else text
    expected = 0 if not inside and "<think>" not in text else len(range(0, len(thought), 2))
    for size in range(1, len(text) + 1):
        reader = ThinkReader(TextReader(), inside=inside)
        tokens = ThoughtTokens(reader)
        for start in range(0, len(text), size):
            tokens.add([begin for begin in begins if start <= begin < start + size])
            reader.read(text[start : start + size])
        tokens.add([len(text)])
        reader.close()
        assert tokens.count == expected
