"""Which tokens a state lets pass, when it is complete, and that it can go back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from services.engine.grammar.compiler import GrammarCompiler
from services.engine.grammar.form import OutputForm
from services.engine.grammar.state import GrammarState
from tests.support.engines import default_tokenizer

EOS, SPECIAL = 2, 1  # of the default model
NEVER_END = frozenset[int]()


def state(compiler: GrammarCompiler, regex: str, stop_ids: frozenset[int] = frozenset({EOS})) -> GrammarState:
    return compiler.compile(OutputForm("regex", regex)).state(stop_ids)


def allowed(state: GrammarState, *, may_end: bool = True) -> set[int]:
    (words,) = state.masks([], [may_end])
    assert words.dtype == np.int32
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def ids(text: str) -> list[int]:
    return default_tokenizer().encode(text, add_special_tokens=False).ids


def test_an_ending_may_come_exactly_where_the_form_is_complete(compiler: GrammarCompiler) -> None:
    (a,), (b,) = ids("a"), ids("b")
    grammar = state(compiler, "ab?", frozenset({EOS, SPECIAL}))
    assert {a} <= allowed(grammar)
    assert not allowed(grammar) & {EOS, SPECIAL}
    assert not grammar.accept(a)
    assert allowed(grammar) == {b, EOS, SPECIAL}
    assert grammar.accept(b), "nothing can follow"


def test_an_ending_ends(compiler: GrammarCompiler) -> None:
    grammar = state(compiler, "a+")
    assert not grammar.accept(ids("a")[0])
    assert grammar.accept(EOS)
    assert not grammar.failure


def test_no_ending_before_min_tokens_unless_nothing_else_is_left(compiler: GrammarCompiler) -> None:
    (a,), (b,) = ids("a"), ids("b")
    grammar = state(compiler, "ab?")
    grammar.accept(a)
    assert allowed(grammar, may_end=False) == {b}
    grammar.accept(b)
    assert allowed(grammar, may_end=False) == {EOS}


def test_an_ending_that_is_ignored_does_not_come(compiler: GrammarCompiler) -> None:
    (a,), (b,) = ids("a"), ids("b")
    grammar = state(compiler, "ab?", NEVER_END)
    grammar.accept(a)
    assert allowed(grammar) == {b}
    assert grammar.accept(b)


def test_a_stop_id_that_is_text_stays_text(compiler: GrammarCompiler) -> None:
    (a,), (b,) = ids("a"), ids("b")
    grammar = state(compiler, "ab?", frozenset({EOS, a}))
    assert a in allowed(grammar)
    assert grammar.ending_ids == {EOS}
    grammar.accept(a)
    assert allowed(grammar) == {b, EOS}


def test_rollback(compiler: GrammarCompiler) -> None:
    (a,), (b,) = ids("a"), ids("b")
    grammar = state(compiler, "ab?")
    first = allowed(grammar)
    for token_ids in ([a, b], [a, EOS], [a], []):
        for token_id in token_ids:
            grammar.accept(token_id)
        grammar.rollback(len(token_ids))
        assert allowed(grammar) == first
    assert not grammar.failure


@pytest.mark.parametrize("text", ['{"name": "Ada"}', '{"name": "Ada", "x"', "{}", '{"name": 3}', '{"name": "A"} !'])
def test_masks_after_drafts_are_those_after_accepting_them(compiler: GrammarCompiler, text: str) -> None:
    properties = {"name": {"type": "string", "maxLength": 8}}
    schema = json.dumps({"type": "object", "properties": properties, "required": ["name"]})
    grammar = compiler.compile(OutputForm("json_schema", schema))
    drafts = [*ids(text), EOS]
    guessed, followed = grammar.state(frozenset({EOS})), grammar.state(frozenset({EOS}))
    masks = guessed.masks(drafts, [True] * (len(drafts) + 1))
    assert len(masks) == len(drafts) + 1
    for draft, mask in zip(drafts, masks, strict=False):
        (expected,) = followed.masks([], [True])
        assert np.array_equal(mask, expected)
        if not mask[draft // 32] >> draft % 32 & 1 or followed.accept(draft):
            break
    assert np.array_equal(guessed.masks([], [True])[0], masks[0]), "guessing leaves no trace"
    assert not guessed.failure


def test_a_token_that_does_not_fit_fails_the_state_alone(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(OutputForm("regex", "a+"))
    broken, whole = grammar.state(frozenset({EOS})), grammar.state(frozenset({EOS}))
    assert broken.accept(ids("b")[0])
    assert broken.failure
    broken.masks([], [True])
    assert not whole.accept(ids("a")[0])
    assert not whole.failure
