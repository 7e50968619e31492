"""Which forms are taken, what they allow, and what is refused with which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.common.errors import InvalidArgument
from services.engine.grammar.compiler import MAX_OPEN_PARTS, MAX_SCHEMA_DEPTH, GrammarCompiler
from services.engine.grammar.form import FormKind, OutputForm
from tests.support.engines import default_files, default_tokenizer


class Outputs:
    """Which texts a form takes as a whole output."""

    def __init__(self, compiler: GrammarCompiler, kind: FormKind, text: str) -> None:
        self._grammar = compiler.compile(OutputForm(kind, text))

    def take(self, text: str) -> bool:
        state = self._grammar.state(frozenset({2}))
        for token_id in token_ids(text):
            state.accept(token_id)
        return not state.failure and _holds(state.masks([], [True])[0], 2)


def token_ids(text: str) -> list[int]:
    return default_tokenizer().encode(text, add_special_tokens=False).ids


def _holds(words: Any, token_id: int) -> bool:
    return bool(words[token_id // 32] >> token_id % 32 & 1)


def schema(compiler: GrammarCompiler, value: Any) -> Outputs:
    return Outputs(compiler, "json_schema", json.dumps(value))


def test_a_schema(compiler: GrammarCompiler) -> None:
    properties = {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", None]}}
    outputs = schema(compiler, {"type": "object", "properties": properties, "required": ["a"]})
    assert outputs.take('{"a": 3}')
    assert outputs.take('{"a": 17, "b": "x", "c": [1.5]}')
    assert not outputs.take('{"a": 2}')
    assert not outputs.take('{"b": "x"}')
    assert not outputs.take('{"a": 3, "b": "y"}')
    assert not outputs.take('{"a": 3')


def test_at_most_one_space_between_json_tokens(compiler: GrammarCompiler) -> None:
    outputs = Outputs(compiler, "json_object", "")
    assert outputs.take('{"a":[1,2]}')
    assert outputs.take('{ "a": [1, 2] }')
    assert not outputs.take('{"a":  1}')
    assert not outputs.take('{"a":\n1}')
    assert not outputs.take(' {"a": 1}')
    assert not outputs.take("[1]")


def test_a_schema_that_says_nothing_takes_any_json(compiler: GrammarCompiler) -> None:
    for value in ({}, True):
        outputs = schema(compiler, value)
        assert outputs.take("[1]")
        assert outputs.take("null")


def test_a_regular_expression_fits_the_whole_output(compiler: GrammarCompiler) -> None:
    outputs = Outputs(compiler, "regex", r"[ab]{2}\d?")
    assert outputs.take("ab")
    assert outputs.take("ba7")
    assert not outputs.take("a")
    assert not outputs.take("xab")
    assert not outputs.take("ab77")


@pytest.mark.parametrize(
    "texts",
    [
        ["yes", "no", "yes and no"],
        ['"\\\n', "é😀", "日本"],
        [""],
        ["a"] * 3,
        ["", "a"],
        ["a b", "(a|b)", "[x-z]", ".*", "^$", r"\d", "a{2}", "#&~- /"],
        [chr(code) for code in range(0x20, 0x100)],
    ],
)
def test_a_choice(compiler: GrammarCompiler, texts: list[str]) -> None:
    outputs = Outputs(compiler, "choice", json.dumps(texts))
    assert all(outputs.take(text) for text in texts)
    assert not outputs.take("xx")


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a" tail\ntail ::= "b" | "c" tail',
        'start: "a" tail\ntail: "b" | "c" tail',
        'start: "a" TAIL\nTAIL: /c*b/',
    ],
)
def test_a_grammar_in_either_notation(compiler: GrammarCompiler, grammar: str) -> None:
    outputs = Outputs(compiler, "grammar", grammar)
    assert outputs.take("ab")
    assert outputs.take("accb")
    assert not outputs.take("ac")


def test_a_grammar_may_hold_a_schema(compiler: GrammarCompiler) -> None:
    text = 'start: "<call>" args "</call>"\nargs: %json {"type": "object", "properties": {"x": {"type": "integer"}}}'
    outputs = Outputs(compiler, "grammar", text)
    assert outputs.take('<call>{"x":1}</call>')
    assert not outputs.take('<call>{"x":"1"}</call>')


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "object"}
    while depth > 1:
        value, depth = {"items": value}, depth - 1
    return value


def test_depth(compiler: GrammarCompiler) -> None:
    compiler.compile(OutputForm("json_schema", json.dumps(nested(MAX_SCHEMA_DEPTH))))
    with pytest.raises(InvalidArgument, match="nested more than 64 levels deep"):
        compiler.compile(OutputForm("json_schema", json.dumps(nested(MAX_SCHEMA_DEPTH + 1))))
    with pytest.raises(InvalidArgument, match="nested"):
        compiler.compile(OutputForm("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"type": "foo"}, "Invalid type: foo"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
        ({"$ref": "#/$defs/x"}, "does not exist"),
        ({"$ref": "https://example.org/schema.json"}, "retriev"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "format": "no-such-format"}, "Unknown format"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "greater than"),
        ({"enum": []}, "Unsatisfiable"),
        # A request cannot switch the refusals off.
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
        (False, "JSON object"),
        ([], "JSON object"),
        ("object", "JSON object"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(compiler: GrammarCompiler, value: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason) as caught:
        compiler.compile(OutputForm("json_schema", json.dumps(value)))
    assert caught.value.param == "structured_output.json_schema"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", "{", "not JSON"),
        ("json_schema", "", "not JSON"),
        ("json_schema", '{"x": -1884000938706739396608}', "not JSON serializable: -1884000938706739396608"),
        ("json_schema", r'{"title": "\ud800"}', "not JSON serializable"),
        ("choice", r'["\ud800"]', "surrogates not allowed"),
        ("choice", "[", "Expecting value"),
        ("regex", "[", "unclosed character class"),
        ("regex", "(?<!a)b", "look-around"),
        ("grammar", "root ::= missing", "missing"),
        ("grammar", "root ::= (((", "GBNF"),
        ("grammar", "no grammar at all (", "grammar"),
        ("grammar", "start: missing", "missing"),
    ],
)
def test_what_is_malformed_is_refused(compiler: GrammarCompiler, kind: FormKind, text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason) as caught:
        compiler.compile(OutputForm(kind, text))
    assert caught.value.param == f"structured_output.{kind}"


def words(number: int) -> list[str]:
    return [f"word {n}" for n in range(number)]


def optional(number: int) -> str:
    properties = {name: {"type": "integer"} for name in words(number)}
    return json.dumps({"type": "object", "properties": properties, "additionalProperties": False})


def test_texts_and_alternatives_of_a_pattern_are_as_many_as_fit(compiler: GrammarCompiler) -> None:
    many = words(10_000)
    for kind, text, last in (
        ("choice", json.dumps(many), many[-1]),
        ("regex", "|".join(many), many[-1]),
        ("json_schema", json.dumps({"enum": many}), json.dumps(many[-1])),
        ("json_schema", json.dumps({"enum": list(range(10_000))}), "9999"),
        ("grammar", "start: WORD\nWORD: " + " | ".join(map(json.dumps, many)), many[-1]),
    ):
        outputs = Outputs(compiler, kind, text)
        assert outputs.take(last)
        assert not outputs.take("word 10000")


@pytest.mark.parametrize(
    ("kind", "text", "parts", "beginning"),
    [
        ("json_schema", optional(501), 2003, "{"),
        ("json_schema", json.dumps({"enum": [[n] for n in range(2001)]}), 2001, "["),
        ("json_schema", json.dumps({"items": {"anyOf": [{"const": {"a": n}} for n in range(3000)]}}), 3006, '[{"'),
        ("grammar", "start: " + " | ".join(map(json.dumps, words(2000))), 2001, "w"),
        ("grammar", "root ::= " + " | ".join(map(json.dumps, words(2000))), 2001, "w"),
    ],
)
def test_what_may_come_next_at_one_place_is_bounded(
    compiler: GrammarCompiler, kind: FormKind, text: str, parts: int, beginning: str
) -> None:
    state = compiler.compile(OutputForm(kind, text)).state(frozenset({2}))
    for token_id in token_ids(beginning):
        state.masks([], [True])
        state.accept(token_id)
    assert state.failure == f"at one place {parts} of its parts may come next, more than {MAX_OPEN_PARTS}"


def test_patterns_that_are_too_many_to_hold_together_are_told_in_words(compiler: GrammarCompiler) -> None:
    schema = {"allOf": [{"type": "string", "pattern": f"{n}x"} for n in range(12)]}
    with pytest.raises(InvalidArgument, match=r"its patterns are too large to tell whether a text fits them all$"):
        compiler.compile(OutputForm("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("json_schema", '{"$ref": "#"}'), ("regex", r"[^\s\S]"), ("regex", r"a[^\s\S]"), ("grammar", "start: x\nx: x")],
)
def test_a_form_that_no_text_has_is_refused(compiler: GrammarCompiler, kind: FormKind, text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"no text has this form: nothing that fits can follow$"):
        compiler.compile(OutputForm(kind, text))


def test_an_embedded_schema_at_fault_is_named_by_its_place(compiler: GrammarCompiler) -> None:
    good, bad = {"$id": "urn:a", "type": "object"}, {"$id": "urn:b", "properties": {"x": {"$ref": "#/$defs/none"}}}
    for schema, place in (
        ({"items": {"anyOf": [good, bad]}}, "#/items/anyOf/1"),
        ({"properties": {"a/b~": {"type": "array", "items": bad}}}, "#/properties/a~1b~0/items"),
        ({"items": good, "not": {}}, ""),
    ):
        with pytest.raises(InvalidArgument) as caught:
            compiler.compile(OutputForm("json_schema", json.dumps(schema)))
        assert caught.value.param == f"structured_output.json_schema{place}"


def test_a_model_without_an_end_has_no_forms() -> None:
    files = default_files()
    with pytest.raises(ValueError, match="end-of-sequence"):
        GrammarCompiler(files.tokenizer_files["tokenizer.json"], files.vocab_size, frozenset())
