"""How far a form reaches: where one text must fit several patterns at once, and how deep its parts lie.

llguidance follows patterns that are intersected (`allOf`, `&`) by the product of what each may do next. It does not
count that work before it is done, and it may arise only after some tokens: the form itself must be bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

_FORMAT_WIDTH = 8  # what the formats' own patterns may do at one byte, at most
_IMPORT_WIDTH = 4  # of a terminal that a grammar takes from elsewhere

# Of a Lark grammar: strings, patterns, comments, the ends of lines, names, and all else by the character.
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\])+/[a-z]*|(?://|#)[^\n]*|\n|_?[A-Za-z][\w-]*|.', re.DOTALL)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
# Of a regular expression: what is no character that stands for itself.
_SYNTAX = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[A-Za-z]|\{[\d,]*\}|\(\?[^):]*[:>]|[\^$.()|*+?\\]")
_COUNTED = 2**64  # more are not counted
_EMBEDDED_SCHEMA = re.compile(r"%json\b\s*")


def pattern_width(pattern: str) -> int:
    """Ways in which a regular expression may read one byte, at most: its classes may overlap, its characters do not."""
    kinds = len(set(re.findall(r"\\[A-Za-z]", pattern)))
    characters = bool(_SYNTAX.sub("", pattern))
    cases = len({c.lower() for c in pattern if c.isalpha()}) if "(?i" in pattern else 0
    anything = not pattern.startswith("^") or "." in pattern
    return max(1, pattern.count("[") + kinds + characters + cases + anything)


def schema_reach(schema: Any) -> Reach:
    """What a JSON Schema amounts to."""
    return _Schemas(schema).reach()


def grammar_overlap(text: str) -> int:
    """Of a grammar: the most combinations within a terminal, or within a schema that is embedded."""
    if "::=" in text:  # GBNF, which intersects nothing
        return 1
    schemas = [schema_reach(schema).most() for schema in embedded_in_grammar(text)]
    return max([_Terminals(text).overlap(), *schemas])


def embedded_in_grammar(text: str) -> Iterator[Any]:
    """The schemas in a Lark grammar. What is no JSON is left to the grammar's own parser."""
    for found in _EMBEDDED_SCHEMA.finditer(text):
        try:
            yield json.JSONDecoder().raw_decode(text, found.end())[0]
        except (ValueError, RecursionError):
            continue


def json_objects(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a JSON value, in no order."""
    left = [value]
    while left:
        match left.pop():
            case dict() as found:
                yield found
                left.extend(found.values())
            case list() as found:
                left.extend(found)


@dataclass(frozen=True, slots=True)
class Reach:
    """Of a schema: the combinations of patterns that the string must fit which it describes, and those of strings below
    it, in an object or array."""

    here: int = 1
    below: int = 1
    levels: int = 0  # of values and references one within the other
    names: frozenset[str] = field(default_factory=frozenset)  # of the children; "*" for those that have no name

    def most(self) -> int:
        """The most combinations at any place."""
        return max(self.here, self.below)

    def both(self, other: Reach) -> Reach:
        """Of a value that follows both."""
        unnamed = ("*" in self.names and other.names) or ("*" in other.names and self.names)
        shared = unnamed or self.names & other.names
        below = self.below * other.below if shared else max(self.below, other.below)
        here = min(self.here * other.here, _COUNTED)
        return Reach(here, min(below, _COUNTED), max(self.levels, other.levels), self.names | other.names)

    def either(self, other: Reach) -> Reach:
        here, below = max(self.here, other.here), max(self.below, other.below)
        return Reach(here, below, max(self.levels, other.levels), self.names | other.names)

    def within(self) -> Reach:
        """Of what leads to it."""
        return replace(self, levels=self.levels + 1)


_NOTHING = Reach()

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


def _answered(
    first: Generator[_Question, _Answer, _Answer],
    look_up: Callable[[_Question], _Answer | Generator[_Question, _Answer, _Answer]],
) -> _Answer:
    """What `first` returns when its questions are answered, each by a value or by a generator with questions of its
    own. A chain of references may be longer than the interpreter's stack."""
    waiting, answer = [first], None
    while True:
        try:
            question = next(waiting[-1]) if answer is None else waiting[-1].send(answer)
        except StopIteration as end:
            waiting.pop()
            answer = end.value
            if not waiting:
                return cast("_Answer", answer)
            continue
        found = look_up(question)
        if isinstance(found, Generator):
            waiting.append(found)
            answer = None
        else:
            answer = found


# Asks for the reach of a schema that lies within a resource, a schema with an `$id`: references begin there.
_Reading = Generator[tuple[Any, Any], Reach, Reach]


class _Schemas:
    """A schema document, each part of which is read once.

    References may lead through all of it, one after the other: what waits for another part is a stack of generators.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, Reach] = {}  # by identity: the document holds the parts
        named = ((schema.get("$id"), schema) for schema in json_objects(root))
        self._resources = {name.rstrip("#"): schema for name, schema in named if isinstance(name, str)}

    def reach(self) -> Reach:
        return _answered(self._read(self._root, self._root), self._look_up)

    def _look_up(self, question: tuple[Any, Any]) -> Reach | _Reading:
        schema, resource = question
        return self._known.get(id(schema)) or self._read(schema, resource)

    def _read(self, schema: Any, resource: Any) -> _Reading:
        if not isinstance(schema, dict):
            return _NOTHING
        self._known[id(schema)] = _NOTHING  # for references to itself
        resource = schema if isinstance(schema.get("$id"), str) else resource
        reach = yield from self._own(schema, resource)
        for part in _list(schema.get("allOf")):
            reach = reach.both((yield part, resource).within())
        for key in ("anyOf", "oneOf"):
            branches = _NOTHING
            for part in _list(schema.get(key)):
                branches = branches.either((yield part, resource).within())
            reach = reach.both(branches)
        if isinstance(reference := schema.get("$ref"), str):
            target, base = self._target(reference, resource)
            reach = reach.both(self._everything() if target is None else (yield target, base).within())
        self._known[id(schema)] = reach
        return reach

    def _own(self, schema: dict[str, Any], resource: Any) -> _Reading:
        """Without what else it refers to."""
        below, levels, names = 1, 0, set()
        for name, child in _children(schema):
            reach = yield child, resource
            below, levels = max(below, reach.most()), max(levels, reach.levels + 1)
            if child is not False:
                names.add(name)
        return Reach(_own_width(schema), below, levels, frozenset(names))

    def _target(self, reference: str, resource: Any) -> tuple[Any, Any]:
        """The schema that is meant, None where it is not found, and the resource that it is within."""
        name, _, pointer = reference.partition("#")
        target = base = self._resources.get(name) if name else resource
        if pointer and not pointer.startswith("/"):
            return None, base
        for step in pointer.split("/")[1:]:
            target = _child(target, step.replace("~1", "/").replace("~0", "~"))
        return target, base

    def _everything(self) -> Reach:
        """Of a reference that others may know how to follow: whatever the document holds may be meant."""
        total = 1
        for schema in json_objects(self._root):
            total = min(total * _own_width(schema), _COUNTED)
        return Reach(total, total, 0, frozenset("*"))


class _Terminals:
    """The terminals of a Lark grammar."""

    def __init__(self, text: str) -> None:
        self._bodies: dict[str, list[str]] = {}  # tokens by name
        self._known: dict[str, int] = {}
        body: list[str] = []
        depth, begins_line = 0, True
        for token in _TOKEN.findall(text):
            if begins_line and depth == 0 and _is_name(token):
                body = self._bodies.setdefault(token, [])
            else:
                body.append(token)
            depth += (token in _OPENING) - (token in _CLOSING)
            begins_line = token == "\n" or (begins_line and token in "?! \t")

    def overlap(self) -> int:
        names = (name for name, body in self._bodies.items() if "&" in body)
        return max((_answered(self._read(name), self._look_up) for name in names), default=1)

    def _look_up(self, name: str) -> int | Generator[str, int, int]:
        return self._known.get(name) or self._read(name)

    def _read(self, name: str) -> Generator[str, int, int]:
        if name not in self._bodies:
            return _IMPORT_WIDTH
        self._known[name] = 1  # for terminals that name themselves, which are refused
        product = width = 1
        for token in self._bodies[name]:
            if token == "&":
                product, width = product * width, 1
            elif token.startswith("/") and len(token) > 2 and token[1] != "/":
                width += _terminal_width(token)
            elif _is_name(token):
                width += yield token
        self._known[name] = min(product * width, _COUNTED)
        return self._known[name]


def _terminal_width(token: str) -> int:
    """Of a pattern between slashes. Unlike a schema's it fits all of the text."""
    pattern, _, flags = token[1:].rpartition("/")
    return pattern_width("^" + ("(?i)" if "i" in flags else "") + pattern)


def _is_name(token: str) -> bool:
    return token[0].isalpha() or (token[0] == "_" and len(token) > 1)


def _own_width(schema: dict[str, Any]) -> int:
    pattern = schema.get("pattern")
    width = pattern_width(pattern) if isinstance(pattern, str) else 1
    return width * (_FORMAT_WIDTH if isinstance(schema.get("format"), str) else 1)


def _children(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas of an object's values and of an array's items, by name."""
    for key in ("properties", "patternProperties"):
        if isinstance(given := schema.get(key), dict):
            yield from ((name if key == "properties" else "*", child) for name, child in given.items())
    for key in ("additionalProperties", "items", "additionalItems", "prefixItems"):
        yield from (("*", child) for child in _list(schema.get(key)))


def _child(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and step in (indices := {str(index): index for index in range(len(value))}):
        return value[indices[step]]
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
