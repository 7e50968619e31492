"""Readers on a text that is cut in every way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from services.gateway.parts import Content, PartReader, Reasoning, ToolCallArguments, ToolCallStart


@dataclass
class Read:
    """What came out, put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str = ""

    @property
    def arguments(self) -> list[Any]:
        return [json.loads(text) for _, text in self.calls]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def read(reader: PartReader, pieces: Iterable[str], reason: str = "stop") -> Read:
    """Reads the pieces to the end."""
    result = Read()
    ids = set()
    parts = [part for piece in pieces if piece for part in reader.read(piece)]
    for part in [*parts, *reader.close()]:
        match part:
            case Content():
                assert part.text
                result.content += part.text
            case Reasoning():
                assert part.text
                result.reasoning += part.text
            case ToolCallStart():
                assert part.call == len(result.calls)
                ids.add(part.id)
                result.calls.append((part.name, ""))
            case ToolCallArguments():
                assert part.call == len(result.calls) - 1
                assert part.text
                name, text = result.calls[-1]
                result.calls[-1] = name, text + part.text
    assert len(ids) == len(result.calls)
    result.finish_reason = reader.finish_reason(reason)
    return result


def read_every_way(make: Callable[[], PartReader], text: str, reason: str = "stop") -> Read:
    """Whole, by characters, and cut in two at every place: always the same."""
    whole = read(make(), [text], reason)
    assert read(make(), text, reason) == whole
    for place in range(1, len(text)):
        assert read(make(), [text[:place], text[place:]], reason) == whole, (text[:place], text[place:])
    return whole
