"""Each format of tool calls: samples in the forms that models write, cut at every place."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.gateway.formats.forced import CallArrayReader, NamedCallReader
from services.gateway.formats.hermes import HermesReader
from services.gateway.formats.llama3_json import Llama3JsonReader
from services.gateway.formats.mistral import MistralReader
from services.gateway.formats.pythonic import PythonicReader
from services.gateway.parts import PartReader, ToolCallArguments, ToolCallStart
from tests.gateway.formats.reading import Read, read, read_every_way

READERS: dict[str, type[PartReader]] = {
    "hermes": HermesReader,
    "llama3_json": Llama3JsonReader,
    "mistral": MistralReader,
    "pythonic": PythonicReader,
}
WEATHER = ("weather", {"city": 'Köln {"}', "days": [1, 2], "deep": {"a": None}})
ARGUMENTS = '{"city": "Köln {\\"}", "days": [1, 2], "deep": {"a": null}}'
ONE = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
NOW = '{"name": "now", "arguments": {}}'

CALLS = [
    ("hermes", f"<tool_call>\n{ONE}\n</tool_call>", "", [WEATHER]),
    ("hermes", f"Let me look.\n\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>{NOW}</tool_call>\n", "Let me look.", 2),
    ("hermes", f"<tool_call>{ONE}<tool_call>{NOW}</tool_call> done", "done", 2),
    ("hermes", f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "weather"}}</tool_call>', "", [WEATHER]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}", "id": 3}</tool_call>', "", [("f", {"a": 1})]),
    ("llama3_json", ONE.replace("arguments", "parameters"), "", [WEATHER]),
    ("llama3_json", f" <|python_tag|>{ONE}; {NOW}", "", 2),
    ("llama3_json", f"{ONE}\n{NOW}\n", "", 2),
    ("mistral", f"[TOOL_CALLS][{ONE}]", "", [WEATHER]),
    ("mistral", f"Sure. [TOOL_CALLS] [{ONE}, {NOW}]", "Sure.", 2),
    ("mistral", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]now[ARGS]{{}}", "", 2),
    ("mistral", f"[TOOL_CALLS]weather[CALL_ID]abc-1[ARGS] {ARGUMENTS}", "", [WEATHER]),
    ("pythonic", '[weather(city="Rome", days=[1, 2.5], ok=true, x=None)]', "", 1),
    ("pythonic", '<|python_tag|>[a.b(), c(d={"e": (1, -2)})]', "", [("a.b", {}), ("c", {"d": {"e": [1, -2]}})]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CALLS, ids=lambda value: str(value)[:40])
def test_calls(name: str, text: str, content: str, calls: int | list[tuple[str, object]]) -> None:
    result = read_every_way(READERS[name], text)
    assert result.content == content
    assert result.finish_reason == "tool_calls"
    if isinstance(calls, int):
        assert len(result.calls) == calls
        assert all(isinstance(arguments, dict) for arguments in result.arguments)
        assert result.names[0] == "weather"
    else:
        assert list(zip(result.names, result.arguments, strict=True)) == calls


TEXTS = [
    "Hello, how are you?",
    "",
    " ",
    "a < b, and <tool is no tag",
    '{"answer": 42}',
    "[1, 2, 3]",
    "[see here](http://x.y)",
    "{not json",
    "<tool_call>no call</tool_call> more",
    '<tool_call>{"nome": 1}</tool_call>',
    '<tool_call>{"name": "f"',
    "[TOOL_CALLS]",
    "[TOOL_CALLS][oops",
    "[TOOL_CALLS] what?",
    "<|python_tag|>print(1)",
    "[f(x)]",
    "[f(1)]",
    "f(a=1)",
    "line one\n\nline two\n",
]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_call_is_content_and_nothing_is_lost(name: str, text: str) -> None:
    result = read_every_way(READERS[name], text)
    assert result == Read(content=text, finish_reason="stop")


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral"])
def test_arguments_are_streamed(name: str) -> None:
    before, after = {"hermes": ("<tool_call>", "</tool_call>"), "mistral": ("[TOOL_CALLS][", "]")}.get(name, ("", ""))
    reader = READERS[name]()
    begin = [part for character in before + ONE[:60] for part in reader.read(character)]
    assert isinstance(begin[0], ToolCallStart)
    assert len(begin) > 10
    end = [part for character in ONE[60:] + after for part in reader.read(character)]
    pieces = [part.text for part in begin + end if isinstance(part, ToolCallArguments)]
    assert "".join(pieces) == ARGUMENTS


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral"])
def test_a_call_that_was_cut_keeps_what_came_and_ends_by_length(name: str) -> None:
    before = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]["}.get(name, "")
    result = read_every_way(READERS[name], before + ONE[:50], reason="length")
    assert result.finish_reason == "length"
    assert ARGUMENTS.startswith(result.calls[0][1])


def test_forced_calls() -> None:
    named = read_every_way(lambda: NamedCallReader("weather"), ARGUMENTS)
    assert (named.names, named.arguments, named.finish_reason) == (["weather"], [WEATHER[1]], "stop")
    several = read_every_way(CallArrayReader, f"[{ONE},\n {NOW}]")
    assert (several.names, several.finish_reason) == (["weather", "now"], "tool_calls")
    cut = read(CallArrayReader(), [f"[{ONE[:40]}"], "length")
    assert cut.finish_reason == "length"
    assert read(CallArrayReader(), ["[{"]).finish_reason == "stop", "a stop string came before any call"


@pytest.mark.parametrize(
    "broken", ["hello", "[ 7]", '["x"]', '[{"arguments": {}}]', '[{"name": "f", "arguments": }]', "}"]
)
def test_a_forced_text_that_is_no_call_is_content(broken: str) -> None:
    """Only an executor that follows no grammar writes it."""
    assert read_every_way(CallArrayReader, broken) == Read(content=broken, finish_reason="stop")
    after = read_every_way(CallArrayReader, f"[{NOW},{broken}")
    assert (after.names, after.content, after.finish_reason) == (["now"], f",{broken}", "tool_calls")


PIECES = [
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
    ),
    *(
        ";",
        '"',
        "\\",
        "\n",
        " ",
        "f",
        "(",
        ")",
        "a=1",
        '"name"',
        '"arguments"',
        '{"name": "f", "arguments": ',
        "{}",
        "\\q",
    ),
]


@pytest.mark.parametrize("name", READERS)
@example('<tool_call>{"name": "\\q", "arguments": {}}</tool_call>')
@example('[TOOL_CALLS][{"name": "\\q", "arguments": {}}]')
@example('{"name": "\\q", "arguments": {}}')
@example("[TOOL_CALLS]f[ARGS]}")
@example("[TOOL_CALLS][\n")
@example("[TOOL_CALLS][ , ]")
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
@settings(max_examples=150)
def test_no_text_breaks_a_reader_or_reads_otherwise_when_cut(name: str, text: str) -> None:
    result = read_every_way(READERS[name], text)
    if not result.calls:
        assert result.content.strip() == text.strip()


@pytest.mark.parametrize("before", ["<tool_call>", "", "[TOOL_CALLS]["])
def test_nesting_too_deep_for_json_is_content(before: str) -> None:
    text = before + '{"arguments": ' + "[" * 100_000 + "]" * 100_000 + ', "name": "f"}'
    reader = {"<tool_call>": HermesReader, "": Llama3JsonReader, "[TOOL_CALLS][": MistralReader}[before]
    assert read(reader(), [text]) == Read(content=text, finish_reason="stop")
