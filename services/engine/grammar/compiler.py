"""A form → a grammar over the model's vocabulary, by llguidance.

llguidance bounds most of the work itself, in steps and not in seconds; bounded.py sees to the rest. It refuses keywords
of JSON Schema that it does not enforce, holds no torch, and takes a usual grammar in a millisecond, since masks are
computed when they are needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from services.common.errors import InvalidArgument
from services.engine.grammar.form import OutputForm
from services.engine.grammar.state import GrammarState, Vocabulary
from services.engine.grammar.words import told

MAX_SCHEMA_DEPTH = 64
MAX_REASON = 400  # characters of an error that are told
MAX_PLACES = 256  # embedded schemas that are tried to find the one at fault

# Over the requests' own options, which a schema may hold under "x-guidance". One space at most between two JSON tokens:
# a small model that may write any whitespace tends to write nothing else.
_JSON_OPTIONS: Any = {"whitespace_flexible": True, "whitespace_pattern": " ", "coerce_one_of": False, "lenient": False}
_MAX_LEXER_STATES = 50_000  # of 1 to 2 KiB each
# Parts that may come next at one place. A mask takes a millisecond with so many, and its time grows by their square.
# An optional property of an object is four of them.
MAX_OPEN_PARTS = 2000
_MAX_STEP_ITEMS = 50_000  # that are looked at for one mask

# What a grammar takes, roughly: measured were 96 KiB for a schema of 0.3 KiB and 488 KiB for one of 18 KiB when
# compiled, and up to twice as much after use.
_BASE_BYTES = 128 * 1024
_BYTES_PER_BYTE_OF_TEXT = 64


class CompiledGrammar:
    """A form over the model's vocabulary, shared by all requests that ask for it."""

    def __init__(self, form: OutputForm, matcher: LLMatcher, vocabulary: Vocabulary) -> None:
        self.form = form
        self.num_bytes = _BASE_BYTES + _BYTES_PER_BYTE_OF_TEXT * len(form.text)  # an estimate
        self._matcher = matcher
        self._vocabulary = vocabulary

    def state(self, stop_token_ids: frozenset[int]) -> GrammarState:
        """The state of an output that has no token yet. stop_token_ids: those that end the request."""
        return GrammarState(self.form, self._matcher.deep_copy(), self._vocabulary, stop_token_ids)


class GrammarCompiler:
    """Compiles for one model. Making one reads the vocabulary, which takes 0.2 s and more and holds the interpreter's
    lock all the while."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """Raises ValueError for a tokenizer that cannot be used, or without an end-of-sequence id."""
        if not eos_token_ids:
            raise ValueError("the model has no end-of-sequence id")
        self._tokenizer = LLTokenizer(tokenizer_json.decode(), n_vocab=vocab_size, eos_token=sorted(eos_token_ids))
        special_ids = frozenset(i for i in range(vocab_size) if self._tokenizer.is_special_token(i))
        self._vocabulary = Vocabulary(vocab_size, eos_token_ids, special_ids)
        self._limits = LLParserLimits(
            max_items_in_row=MAX_OPEN_PARTS,
            step_max_items=_MAX_STEP_ITEMS,
            max_lexer_states=_MAX_LEXER_STATES,
            verbose_errors=False,
        )

    def compile(self, form: OutputForm) -> CompiledGrammar:
        """Raises InvalidArgument, with the form's field, for what is invalid, too large or cannot be enforced.

        Where a schema that is embedded in a JSON Schema, with an `$id` of its own, is at fault, the field ends with `#`
        and the JSON Pointer that leads to it.
        """
        try:
            definition = _definition(form)
        except ValueError as error:  # what JSON can say and llguidance cannot take: integers of more than 64 bits
            raise _refused(form, str(error)) from error
        matcher = self._matcher(definition)
        if matcher.is_error():
            raise _refused(form, matcher.get_error(), self._place(form))
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            raise _refused(form, f"no text has this form: {first.get_error()}")
        return CompiledGrammar(form, matcher, self._vocabulary)

    def _matcher(self, definition: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, definition, log_level=0, limits=self._limits)

    def _place(self, form: OutputForm) -> str:
        """Of a form that is refused: which embedded schema is refused by itself, too; empty for none."""
        if form.kind != "json_schema":
            return ""
        for pointer, schema in islice(embedded_schemas(_parsed_schema(form)), MAX_PLACES):
            if self._matcher(_schema_definition(schema)).is_error():
                return f"#{pointer}"
        return ""


def _definition(form: OutputForm) -> str:
    """The form as llguidance takes it."""
    match form.kind:
        case "json_object":
            return _schema_definition({"type": "object"})
        case "json_schema":
            return _schema_definition(_parsed_schema(form))
        case "regex":
            return LLMatcher.grammar_from_regex(form.text)
        case "choice":
            # One pattern, however many texts: as alternatives of a grammar they would be MAX_OPEN_PARTS at most.
            return LLMatcher.grammar_from_regex("|".join(re.escape(text) for text in json.loads(form.text)))
        case "grammar":
            return LLMatcher.grammar_from_lark(_lark(form) if "::=" in form.text else form.text)


def _schema_definition(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS)


def _parsed_schema(form: OutputForm) -> dict[str, Any]:
    try:
        schema = json.loads(form.text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not JSON: {error}"
        raise _refused(form, reason) from error
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise _refused(form, "a JSON Schema is a JSON object")
    if _is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise _refused(form, f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    return schema


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and arrays are nested more than `depth` deep."""
    level = [value]
    for _ in range(depth):
        containers = [v for v in level if isinstance(v, dict | list)]
        level = [child for c in containers for child in (c.values() if isinstance(c, dict) else c)]
        if not level:
            return False
    return any(isinstance(v, dict | list) for v in level)


def embedded_schemas(value: Any, pointer: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas below the root that have an `$id`, with their JSON Pointers, outer ones first."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        below = f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
        if isinstance(child, dict) and isinstance(child.get("$id"), str):
            yield below, child
        yield from embedded_schemas(child, below)


def _lark(form: OutputForm) -> str:
    """GBNF as Lark."""
    try:
        return gbnf_to_lark(form.text)
    except Exception as error:  # it has a type for some mistakes, others end anywhere in its parser
        raise _refused(form, f"it is no GBNF grammar: {error}") from error


def _refused(form: OutputForm, reason: str, place: str = "") -> InvalidArgument:
    what = {"json_schema": "schema", "regex": "regular expression", "choice": "choice", "grammar": "grammar"}
    text = " ".join(told(reason).split())
    text = text if len(text) <= MAX_REASON else text[:MAX_REASON] + "…"
    return InvalidArgument(f"the {what.get(form.kind, 'form')} cannot be used: {text}", form.param + place)
