"""Reasoning between think tags, before the answer: DeepSeek's models, Qwen3 and others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum, auto

from services.gateway.formats.markers import certain
from services.gateway.parts import Part, PartReader, Reasoning

OPEN, CLOSE = "<think>", "</think>"


class _Where(Enum):
    BEFORE = auto()
    INSIDE = auto()
    BETWEEN = auto()  # in the white space behind the closing tag
    ANSWER = auto()


class ThinkReader:
    """Splits the reasoning off; the answer is read by `answer`. White space around both is left out.

    `inside`: the prompt has opened the tag already.
    """

    def __init__(self, answer: PartReader, *, inside: bool) -> None:
        self._answer = answer
        self._where = _Where.INSIDE if inside else _Where.BEFORE
        self._held = ""
        self._begun = False  # something of the reasoning was handed out
        self._num_read = 0  # characters, up to the answer
        self._thought_length = 0

    @property
    def thought_length(self) -> int:
        """Characters of the text, from its start, that are thought, the tags included: so far, or in all once
        `thought_is_over`."""
        if self._where is _Where.INSIDE:
            return self._num_read
        return self._thought_length

    @property
    def thought_is_over(self) -> bool:
        """What comes now is none."""
        return self._where in (_Where.BETWEEN, _Where.ANSWER)

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        if self._where is _Where.ANSWER:
            return self._answer.read(text)
        self._num_read += len(text)
        self._held += text
        if self._where is _Where.BEFORE:
            self._look_for_the_tag()
        parts: list[Part] = []
        if self._where is _Where.INSIDE:
            parts += self._reasoning()
        if self._where is _Where.BETWEEN:
            self._held = self._held.lstrip()
            if self._held:
                self._where = _Where.ANSWER
        if self._where is _Where.ANSWER:
            held, self._held = self._held, ""
            parts += self._answer.read(held)
        return parts

    def _look_for_the_tag(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._held, self._where = text[len(OPEN) :], _Where.INSIDE
        elif not OPEN.startswith(text):
            self._where = _Where.ANSWER

    def _reasoning(self) -> list[Part]:
        inside, tag, after = self._held.partition(CLOSE)
        if tag:
            self._held, self._where, sure = after, _Where.BETWEEN, inside.rstrip()
            self._thought_length = self._num_read - len(after)
        else:
            sure, self._held = certain(inside, CLOSE)
        if not self._begun:
            sure = sure.lstrip()
            if not tag and not sure:
                self._held = self._held.lstrip()
        self._begun = self._begun or bool(sure)
        return [Reasoning(sure)] if sure else []

    def close(self) -> Sequence[Part]:
        """What was held back; the text has ended."""
        held, self._held = self._held, ""
        parts: list[Part] = []
        if self._where is _Where.INSIDE and held.strip():
            parts.append(Reasoning(held.rstrip()))
        elif self._where is _Where.BEFORE and held:
            parts += self._answer.read(held)
        return [*parts, *self._answer.close()]

    def finish_reason(self, reason: str) -> str:
        """As the answer ended."""
        return self._answer.finish_reason(reason)


class ThoughtTokens:
    """Counts the tokens of a thought: those that begin in it, in whatever deltas they came."""

    def __init__(self, reader: ThinkReader) -> None:
        self._reader = reader
        self._offsets: list[int] = []

    def add(self, offsets: Sequence[int]) -> None:
        """Where the next tokens begin, in characters of the text; before the reader has read their text."""
        if not self._reader.thought_is_over:
            self._offsets.extend(offsets)

    @property
    def count(self) -> int:
        """As far as the reader has read."""
        return bisect_left(self._offsets, self._reader.thought_length)
