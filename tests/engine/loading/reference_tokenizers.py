"""Tokenizers written down a second time, slowly and from their definitions, to test the built ones against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import regex

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def byte_letters() -> dict[int, str]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for U+0100 and on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class ByteLevelBpe:
    """Radford et al. 2019: words, spelled in bytes; join the neighbours of the lowest rank until none is left."""

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str],
        special: Sequence[str],
        words: str = GPT2_WORDS,
        *,
        single_digits: bool = False,
        whole_words_first: bool = False,
    ) -> None:
        self._ids = {token: id for id, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._special = regex.compile("(" + "|".join(map(regex.escape, sorted(special, key=len, reverse=True))) + ")")
        self._specials = set(special)
        self._words = regex.compile(words)
        self._single_digits = single_digits
        self._whole_words_first = whole_words_first
        self._letters = byte_letters()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._special.split(text):
            if part in self._specials:
                ids.append(self._ids[part])
                continue
            for piece in regex.split(r"(\p{N})", part) if self._single_digits else [part]:
                for word in self._words.findall(piece):
                    ids.extend(self._encode_word("".join(self._letters[byte] for byte in word.encode())))
        return ids

    def _encode_word(self, word: str) -> list[int]:
        if self._whole_words_first and word in self._ids:
            return [self._ids[word]]
        parts = [letter for letter in word if letter in self._ids]  # a byte that has no token is left out
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(range(len(pairs)), key=lambda i: self._ranks.get(pairs[i], len(self._ranks)))
            if pairs[best] not in self._ranks:
                break
            parts[best : best + 2] = ["".join(pairs[best])]
        return [self._ids[part] for part in parts]


class SentencePieceBpe:
    """Kudo and Richardson 2018: join the neighbours whose union is the piece of the best score until none is one."""

    def __init__(self, tokens: Sequence[str], scores: Sequence[float], special: Sequence[str]) -> None:
        self._ids = {token: id for id, token in enumerate(tokens)}
        self._scores = {token: scores[id] for token, id in self._ids.items() if token not in special}
        self._special = regex.compile("(" + "|".join(map(regex.escape, special)) + ")")
        self._specials = set(special)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._special.split(text):
            if part in self._specials:
                ids.append(self._ids[part])
            elif part:
                ids.extend(self._encode_part("▁" + part.replace(" ", "▁")))
        return ids

    def _encode_part(self, text: str) -> list[int]:
        parts = list(text)
        while True:
            unions = ["".join(pair) for pair in pairwise(parts)]
            best = max(range(len(unions)), key=lambda i: self._scores.get(unions[i], -math.inf), default=None)
            if best is None or unions[best] not in self._scores:
                break
            parts[best : best + 2] = [unions[best]]
        return [id for part in parts for id in self._ids_of(part)]

    def _ids_of(self, piece: str) -> list[int]:
        if piece in self._ids:
            return [self._ids[piece]]
        return [self._ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
