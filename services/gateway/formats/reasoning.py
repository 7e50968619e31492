"""Reasoning between think tags, before the answer: DeepSeek's models, Qwen3 and others."""

from __future__ import annotations

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

    def read(self, text: str) -> Sequence[Part]:
        """The parts that are certain after this text."""
        if self._where is _Where.ANSWER:
            return self._answer.read(text)
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
