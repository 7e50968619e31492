"""Which forms are compiled at once, and what becomes of the others. Each trial is a real process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.common.errors import InvalidArgument
from services.engine.grammar.bounded import MAX_CONSTANT, MAX_OVERLAP, BoundedCompiler, is_costly
from services.engine.grammar.compiler import GrammarCompiler
from services.engine.grammar.form import FormKind, OutputForm
from services.engine.grammar.trial import Trial
from tests.engine.grammar.schemas import OBJECTS, SCHEMAS

LONG = "a?" * 10_000 + "a" * 10_000  # parts of which any may be left out


def schema(value: Any) -> OutputForm:
    return OutputForm("json_schema", json.dumps(value))


def unlike(number: int) -> list[dict[str, Any]]:
    return [{"type": "string", "pattern": f"{n}x"} for n in range(number)]


@pytest.mark.parametrize("value", [*SCHEMAS, {"anyOf": OBJECTS}, {"type": "number", "multipleOf": 0.01}])
def test_usual_schemas_are_not_costly(value: Any) -> None:
    assert not is_costly(schema(value))


@pytest.mark.parametrize(
    ("kind", "text", "costly"),
    [
        ("json_object", "", False),
        ("regex", "(a{1,500}){1,500}", False),
        ("regex", "a" * 3000, True),
        ("choice", json.dumps([f"word {n}" for n in range(1000)]), False),
        ("choice", json.dumps(["a" * 1000] * 70), True),
        ("grammar", 'root ::= "a" | "b"', False),
        ("grammar", "start: A\nA: /[a-z]+/ & ~/(?s:.*)no(?s:.*)/", False),
        ("grammar", "start: A\nA: " + " & ".join(["/[ab]x/"] * 9), True),
        ("grammar", "start: a\na: %json {}", True),
        ("json_schema", "{", False),
        ("json_schema", json.dumps({"allOf": unlike(4)}), False),
        ("json_schema", json.dumps({"allOf": unlike(9)}), True),
        ("json_schema", json.dumps({"type": "integer", "multipleOf": 0}), False),
        ("json_schema", json.dumps({"type": "integer", "multipleOf": 100_003}), True),
        ("json_schema", json.dumps({"allOf": [{"multipleOf": 0.101}, {"multipleOf": 103}]}), True),
        ("json_schema", json.dumps({"patternProperties": {f"^{n}_": {} for n in range(100)}}), True),
        ("json_schema", json.dumps({"pattern": "a" * 3000}), True),
        ("json_schema", json.dumps({"title": "a" * 40_000}), True),
    ],
)
def test_what_is_costly(kind: FormKind, text: str, costly: bool) -> None:
    assert is_costly(OutputForm(kind, text)) == costly


@pytest.mark.parametrize(
    "form",
    [
        schema({"allOf": unlike(110)}),
        schema({"allOf": [{"properties": {"a": {"pattern": f"^(z|yyy.*{n}x)$"}}} for n in range(20)]}),
        OutputForm("grammar", "start: A\nA: " + " & ".join(f"/z|y*1x{n}./" for n in range(20))),
        OutputForm("grammar", "start: a\na: %json " + json.dumps({"allOf": unlike(110)})),
    ],
)
def test_patterns_of_one_text_whose_masks_could_take_forever_are_refused(
    bounded_compiler: BoundedCompiler, form: OutputForm
) -> None:
    assert is_costly(form)
    with pytest.raises(InvalidArgument, match=f"have more than {MAX_OVERLAP} combinations") as caught:
        bounded_compiler.compile_costly(form)
    assert caught.value.param == form.param


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", json.dumps({"items": {"const": {"a": ["a" * (MAX_CONSTANT + 1)]}}})),
        ("json_schema", json.dumps({"enum": ["a", "a" * (MAX_CONSTANT + 1)]})),
        ("choice", json.dumps(["a", "a" * (MAX_CONSTANT + 1)])),
        ("regex", "a|b" + "a" * MAX_CONSTANT),
        ("grammar", 'start: "' + "a" * MAX_CONSTANT + '"'),
    ],
)
def test_a_text_whose_masks_would_take_long_is_refused(
    bounded_compiler: BoundedCompiler, kind: FormKind, text: str
) -> None:
    form = OutputForm(kind, text)
    assert is_costly(form)
    with pytest.raises(InvalidArgument, match=f"a text .* characters, more than {MAX_CONSTANT}") as caught:
        bounded_compiler.compile_costly(form)
    assert caught.value.param == form.param


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (
            "regex",
            "|".join(f"{LONG}{n}" for n in range(6)),
            "it takes more than 256 MiB of memory to compile",
        ),
        (
            "grammar",
            "start: r0\n" + "\n".join(f'r{n}: r{n + 1} "a"' for n in range(10_000)) + '\nr10000: "b"',
            "it has too many parts one within or after the other to compile",
        ),
        ("grammar", "start: missing\n" + "// \n" * 2000, "unknown name"),
    ],
)
def test_what_a_trial_refuses(bounded_compiler: BoundedCompiler, kind: FormKind, text: str, reason: str) -> None:
    form = OutputForm(kind, text)
    assert is_costly(form)
    with pytest.raises(InvalidArgument, match=reason) as caught:
        bounded_compiler.compile_costly(form)
    assert caught.value.param == form.param


def test_what_passes_its_trial_is_a_grammar_that_knows_its_size(
    bounded_compiler: BoundedCompiler, compiler: GrammarCompiler
) -> None:
    form = schema({"allOf": [{"type": "integer", "multipleOf": number} for number in (101, 103)]})
    assert is_costly(form)
    grammar = bounded_compiler.compile_costly(form)
    assert grammar.form == form
    assert grammar.num_bytes > 2 * compiler.compile(form).num_bytes
    state = grammar.state(frozenset({2}))
    assert state.masks([], [True])[0].any()


def test_a_trial_that_cannot_be_held_is_nobodys_fault() -> None:
    with pytest.raises(RuntimeError, match="the trial of a form ended with 1: "):
        Trial(b"{}", 100, frozenset({1})).run(OutputForm("regex", "a"))
