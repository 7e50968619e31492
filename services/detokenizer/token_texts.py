"""Text and bytes of single tokens, for log-probabilities."""

from __future__ import annotations

from services.detokenizer.decode import ByteLevelTable, WindowVocabulary


class TokenTexts:
    """The tokens of one tokenizer, each looked up once.

    A byte-level tokenizer's tokens are bytes. Another one's are what they add to a text that has begun, so that a word
    has its space; its byte tokens are their byte.
    """

    def __init__(self, vocabulary: ByteLevelTable | WindowVocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: dict[int, tuple[str, bytes]] = {}

    def __call__(self, token_id: int) -> tuple[str, bytes]:
        """A token as text and as bytes, both empty for an id without a token.

        The text of a token that is only a part of a character is each of its bytes as \\xNN.
        """
        found = self._known.get(token_id)
        if found is None:
            data = self._bytes_of(token_id)
            found = self._known[token_id] = _readable(data), data
        return found

    def knows(self, token_id: int) -> bool:
        """Whether there is a token with this id."""
        vocabulary = self._vocabulary
        return token_id in (vocabulary.full if isinstance(vocabulary, ByteLevelTable) else vocabulary.known)

    def _bytes_of(self, token_id: int) -> bytes:
        vocabulary = self._vocabulary
        if isinstance(vocabulary, ByteLevelTable):
            return vocabulary.full.get(token_id, b"")
        if token_id not in vocabulary.known:
            return b""
        byte = vocabulary.fallback_bytes.get(token_id)
        if byte is not None:
            return byte
        if token_id in vocabulary.special:
            return (vocabulary.tokenizer.id_to_token(token_id) or "").encode()
        return vocabulary.text_of(token_id).encode()


def _readable(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)
