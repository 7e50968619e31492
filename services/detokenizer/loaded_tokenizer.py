"""The engine's tokenizer files, ready for decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tokenizers import Tokenizer

from services.common.errors import InvalidArgument
from services.detokenizer.decode import DecoderFactory, decoder_factory, read_vocabulary
from services.detokenizer.token_texts import TokenTexts


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer, the decoders made of it, and the model's vocabulary, which may be larger than the tokenizer's."""

    tokenizer: Tokenizer
    make_decoder: DecoderFactory
    token_texts: TokenTexts
    vocab_size: int

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], vocab_size: int) -> Self:
        """Loads tokenizer.json. Raises ValueError when it cannot be read."""
        try:
            tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"tokenizer.json cannot be loaded: {error}") from error
        vocabulary = read_vocabulary(tokenizer)
        vocab_size = max(vocab_size, tokenizer.get_vocab_size())
        return cls(tokenizer, decoder_factory(vocabulary), TokenTexts(vocabulary), vocab_size)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids. Raises InvalidArgument for an id outside the vocabulary."""
        if token_ids and max(token_ids) >= self.vocab_size:
            raise InvalidArgument(f"ids: must be below the vocabulary's size, {self.vocab_size}", "ids")
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
