"""Token ids → text as they come, one decoder per request.

The text of a request is decode(prompt tail + generated ids) without what decode(prompt tail) shows completely. The last
prompt ids are context: they give the first generated token its leading space, and a character that begins in the
prompt and ends in the output is emitted once, whole. Text of the prompt alone is never emitted.

A character that is split over tokens is held back until it is complete. Bytes that can never become a character come
out as U+FFFD as soon as that is known. What is still incomplete at the end comes out by `flush`.

An id without a token has no text, in the prompt as in the output: a model's vocabulary may be padded beyond its
tokenizer's, and a model may choose such an id.

Two decoders share this contract. `ByteLevelDecoder` looks bytes up in a table and is exact for every id sequence;
`WindowDecoder` asks the tokenizer to decode a short window of ids and serves every other tokenizer.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_PROMPT_IDS = 64  # how far back context is looked for behind ids without text
_MAX_INCOMPLETE_BYTES = 3  # of a UTF-8 sequence
_CONTEXT = 4  # ids that a window keeps as context when it is cut …
_MAX_WINDOW = 10  # … which it is beyond this length
_BYTE_CONTEXT = "A"  # stands as context for a run of byte-fallback tokens


class IncrementalDecoder(Protocol):
    """The text of one request."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Takes the next generated ids and returns the complete new text, "" while all of it is held back."""

    def flush(self) -> str:
        """Ends the text: what was held back as incomplete, as the tokenizer renders it."""


class DecoderFactory(Protocol):
    """Makes the decoders of all requests to one tokenizer; holds what they share."""

    def __call__(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> IncrementalDecoder:
        """A decoder for the text that follows `prompt_ids`."""


def make_decoder_factory(tokenizer: Tokenizer) -> DecoderFactory:
    """Chooses the decoder for a tokenizer. Takes about 0.3 s for 50,000 tokens."""
    return decoder_factory(read_vocabulary(tokenizer))


def read_vocabulary(tokenizer: Tokenizer) -> ByteLevelTable | WindowVocabulary:
    """What the decoders of a tokenizer share."""
    table = byte_level_table(tokenizer)
    return window_vocabulary(tokenizer) if table is None else table


def decoder_factory(vocabulary: ByteLevelTable | WindowVocabulary) -> DecoderFactory:
    """The factory of the vocabulary's decoders."""
    if isinstance(vocabulary, ByteLevelTable):
        return partial(ByteLevelDecoder, vocabulary)
    return partial(WindowDecoder, vocabulary)


# --- byte-level BPE -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class ByteLevelTable:
    """The bytes of each token id; in `plain`, special tokens have none."""

    full: Mapping[int, bytes]
    plain: Mapping[int, bytes]


class ByteLevelDecoder:
    """For byte-level tokenizers: concatenated token bytes through an incremental UTF-8 decoder."""

    __slots__ = ("_extended", "_pending", "_table")

    def __init__(self, table: ByteLevelTable, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._table = table.plain if skip_special_tokens else table.full
        tail = b""
        for token_id in reversed(prompt_ids[-_MAX_PROMPT_IDS:]):
            tail = self._table.get(token_id, b"") + tail
            if len(tail) >= _MAX_INCOMPLETE_BYTES:
                break
        self._pending = tail[codecs.utf_8_decode(tail, "replace", False)[1] :]
        self._extended = False  # whether the output added bytes to what the prompt left

    def push(self, token_ids: Sequence[int]) -> str:
        table = self._table
        new = table.get(token_ids[0], b"") if len(token_ids) == 1 else b"".join([table.get(i, b"") for i in token_ids])
        if not new:
            return ""
        self._extended = True
        data = self._pending + new
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        pending, self._pending = self._pending, b""
        return pending.decode("utf-8", "replace") if self._extended else ""


def byte_level_table(tokenizer: Tokenizer) -> ByteLevelTable | None:
    """The table of a byte-level tokenizer; None where the tokenizer is of another kind.

    Every entry is checked against the tokenizer's own decoding.
    """
    if _decoder_kinds(tokenizer) != ["ByteLevel"]:
        return None
    alphabet = _byte_alphabet()
    tokens = _tokens_by_id(tokenizer)
    full = {token_id: _token_bytes(token, alphabet) for token_id, token in tokens.items()}
    rendered = tokenizer.decode_batch([[token_id] for token_id in full], skip_special_tokens=False)
    if any(data.decode("utf-8", "replace") != text for data, text in zip(full.values(), rendered, strict=True)):
        return None
    return ByteLevelTable(full, full | dict.fromkeys(_special_ids(tokenizer), b""))


def _token_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    # A token with any character outside the alphabet is an added token that stands for itself.
    data = [alphabet.get(char) for char in token]
    return token.encode() if None in data else bytes(byte for byte in data if byte is not None)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes are their own character, the others count up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


# --- every other tokenizer ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class WindowVocabulary:
    """What the window decoders of one tokenizer share."""

    tokenizer: Tokenizer
    known: frozenset[int]
    special: frozenset[int]
    fallback_bytes: Mapping[int, bytes]  # of the tokens <0x00> … <0xFF>, where the tokenizer decodes them as bytes
    byte_context: Sequence[int]  # the byte token of _BYTE_CONTEXT, where there are byte tokens

    def text_of(self, token_id: int) -> str:
        """What a token adds to a text that has begun, as far as it has a text of its own."""
        alone = self.tokenizer.decode([token_id], skip_special_tokens=False)
        twice = self.tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return twice.removeprefix(alone) or alone


class WindowDecoder:
    """For tokenizers whose decoding depends on neighbours (Metaspace, WordPiece, …): decodes a short window of ids.

    A window whose text ends in U+FFFD is taken as incomplete until three more tokens have come.

    Byte-fallback tokens go through a UTF-8 decoder instead: the tokenizer renders a run of them as U+FFFD throughout
    when any byte of it is wrong, which would take back characters that have been shown. Each wrong byte alone becomes
    one U+FFFD here.
    """

    def __init__(self, vocabulary: WindowVocabulary, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._vocabulary = vocabulary
        self._silent: frozenset[int] = vocabulary.special if skip_special_tokens else frozenset()
        self._window: list[int] = []  # the last ids …
        self._shown = 0  # … of whose text so many characters have been emitted (or belong to the prompt)
        self._num_held = 0  # ids at the window's end since when its text ends in an incomplete character
        self._pending = b""  # bytes of an incomplete character
        audible = [i for i in prompt_ids[-_MAX_PROMPT_IDS:] if i in vocabulary.known and i not in self._silent]
        for token_id in audible[-_MAX_WINDOW:]:
            self._push_one(token_id)
        self._extended = False  # whether the output added anything to what the prompt left

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        if not self._extended:
            return ""
        return self._drop_held() + self._drop_pending()

    def _push_one(self, token_id: int) -> str:
        vocabulary = self._vocabulary
        if token_id in self._silent or token_id not in vocabulary.known:
            return ""
        self._extended = True
        byte = vocabulary.fallback_bytes.get(token_id)
        if byte is not None:
            return self._push_byte(byte)
        return self._drop_pending() + self._push_window(token_id)

    def _push_byte(self, byte: bytes) -> str:
        held = self._drop_held()
        text, self._pending = _decode_bytewise(self._pending + byte)
        self._window, self._shown = list(self._vocabulary.byte_context), len(_BYTE_CONTEXT)
        return held + text

    def _push_window(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT) and self._may_be_incomplete(token_id):
            self._num_held += 1
            return self._show(text.rstrip(_REPLACEMENT))
        self._num_held = 0
        new = self._show(text)
        if len(self._window) > _MAX_WINDOW:
            self._window = self._window[-_CONTEXT:]
            self._shown = len(self._decode(self._window))
        return new

    def _show(self, text: str) -> str:
        """What is new in the text of the window."""
        shown, self._shown = self._shown, max(self._shown, len(text))
        return text[shown:]

    def _may_be_incomplete(self, token_id: int) -> bool:
        # A character has at most four bytes, so that three tokens at most can wait for its end.
        if self._num_held >= _MAX_INCOMPLETE_BYTES:
            return False
        token = self._vocabulary.tokenizer.id_to_token(token_id)
        return token is not None and not token.endswith(_REPLACEMENT)

    def _drop_held(self) -> str:
        if self._num_held == 0:
            return ""
        self._num_held = 0
        return self._show(self._decode(self._window))

    def _drop_pending(self) -> str:
        dropped, self._pending = self._pending, b""
        return _REPLACEMENT * len(dropped)

    def _decode(self, token_ids: list[int]) -> str:
        return self._vocabulary.tokenizer.decode(token_ids, skip_special_tokens=False)


def window_vocabulary(tokenizer: Tokenizer) -> WindowVocabulary:
    ids = {byte: tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(0x100)}
    fallback = {token_id: bytes([byte]) for byte, token_id in ids.items() if token_id is not None}
    letter = ids[ord(_BYTE_CONTEXT)]
    if letter is None or tokenizer.decode([letter], skip_special_tokens=False) != _BYTE_CONTEXT:
        fallback = {}  # tokens that merely look like byte tokens
    return WindowVocabulary(
        tokenizer=tokenizer,
        known=frozenset(_tokens_by_id(tokenizer)),
        special=frozenset(_special_ids(tokenizer)),
        fallback_bytes=fallback,
        byte_context=(letter,) if fallback and letter is not None else (),
    )


def _decode_bytewise(data: bytes) -> tuple[str, bytes]:
    """Decodes UTF-8 with one U+FFFD per wrong byte. Returns the text and the incomplete rest."""
    text = ""
    while True:
        try:
            new, used = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError as error:
            text += data[: error.start].decode() + _REPLACEMENT * (error.end - error.start)
            data = data[error.end :]
        else:
            return text + new, data[used:]


# --- what both read from a tokenizer --------------------------------------------------------------------------------


def _tokens_by_id(tokenizer: Tokenizer) -> dict[int, str]:
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}
    return tokens | {token_id: added.content for token_id, added in tokenizer.get_added_tokens_decoder().items()}


def _special_ids(tokenizer: Tokenizer) -> Iterable[int]:
    return [token_id for token_id, added in tokenizer.get_added_tokens_decoder().items() if added.special]


def _decoder_kinds(tokenizer: Tokenizer) -> list[str]:
    """The types of the tokenizer's decoders, in the order in which they are applied."""
    if tokenizer.decoder is None:
        return []
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return [part["type"] for part in state.get("decoders", [state])]
