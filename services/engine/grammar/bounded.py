"""Compilation whose time and memory are bounded: at once for what is known to be cheap, else after a trial."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from services.common.errors import InvalidArgument
from services.engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from services.engine.grammar.constants import longest_constant
from services.engine.grammar.form import FormKind, OutputForm
from services.engine.grammar.overlap import grammar_overlap, json_objects, schema_reach
from services.engine.grammar.trial import Trial

# Combinations of patterns that one text must fit together. With so many a mask took 5 ms, with 2**20 3 s.
MAX_OVERLAP = 2**12

# Characters of a text that a form prescribes. A mask within one takes up to 10 ms, and its time grows with the length.
MAX_CONSTANT = 32 * 1024

# Up to here, whatever a form says, compiling it was found to take less than a second.
_CHEAP_BYTES: dict[FormKind, int] = {
    "json_object": 0,
    "json_schema": 32 * 1024,
    "choice": 32 * 1024,
    "regex": 2 * 1024,
    "grammar": 4 * 1024,
}
_CHEAP_OVERLAP = 2**8
_CHEAP_DIVISOR = 10_000
_CHEAP_LEVELS = 128  # one within the other: each takes some 7 KiB of the thread's stack
_CHEAP_REFERENCES = 256
_CHEAP_PATTERN_PROPERTIES = 32  # each is compared with each


class BoundedCompiler:
    """A GrammarCompiler that ends, whatever the form."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """Raises ValueError as GrammarCompiler does."""
        self._compiler = GrammarCompiler(tokenizer_json, vocab_size, eos_token_ids)
        self._trial = Trial(tokenizer_json, vocab_size, eos_token_ids)

    def compile(self, form: OutputForm) -> CompiledGrammar:
        """Of a form that is not costly. Raises InvalidArgument as GrammarCompiler does."""
        return self._compiler.compile(form)

    def compile_costly(self, form: OutputForm) -> CompiledGrammar:
        """Raises InvalidArgument also for what takes too much time or memory."""
        if (length := longest_constant(form)) > MAX_CONSTANT:
            reason = f"a text without alternatives has {length} characters, more than {MAX_CONSTANT}"
            raise InvalidArgument(reason, form.param)
        if _overlap(form) > MAX_OVERLAP:
            reason = f"the patterns that one text must fit together have more than {MAX_OVERLAP} combinations"
            raise InvalidArgument(reason, form.param)
        num_bytes = self._trial.run(form)
        grammar = self._compiler.compile(form)
        grammar.num_bytes = max(grammar.num_bytes, num_bytes)
        return grammar


def is_costly(form: OutputForm) -> bool:
    """Whether compiling it may take long. Takes milliseconds at most: larger forms are costly unread."""
    if len(form.text) > _CHEAP_BYTES[form.kind]:
        return True
    match form.kind:
        case "json_schema":
            schema = _schema(form)
            return _has_costly_keyword(schema) or _reaches_far(schema)
        case "grammar":
            return "%json" in form.text or grammar_overlap(form.text) > _CHEAP_OVERLAP
        case _:
            return False


def _overlap(form: OutputForm) -> int:
    match form.kind:
        case "json_schema":
            return schema_reach(_schema(form)).most()
        case "grammar":
            return grammar_overlap(form.text)
        case _:
            return 1


def _schema(form: OutputForm) -> Any:
    """None for what is no JSON, which compiling it refuses."""
    try:
        return json.loads(form.text)
    except (ValueError, RecursionError):
        return None


def _reaches_far(schema: Any) -> bool:
    num_references = sum("$ref" in value for value in json_objects(schema))
    if num_references == 0 and not any("pattern" in value or "format" in value for value in json_objects(schema)):
        return False  # most schemas
    reach = schema_reach(schema)
    return reach.most() > _CHEAP_OVERLAP or reach.levels > _CHEAP_LEVELS or num_references > _CHEAP_REFERENCES


def _has_costly_keyword(schema: Any) -> bool:
    divisors = [1]
    for value in json_objects(schema):
        divisor = value.get("multipleOf")
        if isinstance(divisor, int | float) and math.isfinite(divisor):
            divisors.append(abs(int("".join(map(str, Decimal(str(divisor)).normalize().as_tuple().digits)))))
        named = value.get("patternProperties")
        patterns = list(named) if isinstance(named, dict) else []
        if len(patterns) > _CHEAP_PATTERN_PROPERTIES:
            return True
        if any(len(str(pattern)) > _CHEAP_BYTES["regex"] for pattern in [*patterns, value.get("pattern", "")]):
            return True
    return math.lcm(*divisors) > _CHEAP_DIVISOR
