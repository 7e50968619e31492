"""The prompt's own text, where a request wants it before its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from services.detokenizer.decode import DecoderFactory, IncrementalDecoder


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt's text up to its last whole character; the decoder goes on with the output."""

    decoder: IncrementalDecoder
    text: str
    offsets: list[int]  # where in the text each of the prompt's tokens begins

    @classmethod
    def of(cls, make_decoder: DecoderFactory, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> Self:
        """Decodes a prompt as the beginning of a text."""
        decoder = make_decoder((), skip_special_tokens=skip_special_tokens)
        parts: list[str] = []
        offsets: list[int] = []
        length = 0
        for token_id in prompt_ids:
            offsets.append(length)
            parts.append(decoder.push((token_id,)))
            length += len(parts[-1])
        return cls(decoder, "".join(parts), offsets)
