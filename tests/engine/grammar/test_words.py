"""llguidance's words for its limits, and ours. Those that are quick to provoke are in test_compiler.py."""

from __future__ import annotations

import pytest

from services.engine.grammar.words import told


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "parser error: Too many items (limit 50000; mask); try avoiding single-byte/short lexemes",
            "at one place it takes more than 50000 steps to find what may come next",
        ),
        ("too many states: 50000 >= 50000", "it takes more than 50000 states to tell its texts apart"),
        (
            "initial lexer configuration (grammar) too big (limit for this grammar: 1000000)",
            "reading its patterns takes more than 1000000 steps",
        ),
        (
            "grammar size (number of symbols) too big (limit for this grammar: 500000)",
            "it has more than 500000 rules and patterns",
        ),
        (
            "fuel exhausted when checking relevance of lexemes (1000000)",
            "reading its patterns takes more than 1000000 steps",
        ),
        (
            "lexer precomputation failed; either increase limits.initial_lexer_fuel or disable it",
            "reading its patterns takes too many steps",
        ),
        (
            "lexer error: too many expressions constructed",
            "at one place it takes too many steps to find what its patterns allow",
        ),
        ("lexer error<non-verbose/>", "lexer error"),
    ],
)
def test_limits_are_told_with_their_numbers(error: str, words: str) -> None:
    assert told(error) == words
