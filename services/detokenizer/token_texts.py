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
        """A token as text and as bytes.

        The text of a token that is only a part of a character is each of its bytes as \\xNN. An id without a token, to
        which a model's padded vocabulary may lead, is `token_id:N` without bytes.
        """
        found = self._known.get(token_id)
        if found is None:
            if not self._has_token(token_id):  # not kept: callers may name any number of them
                return f"token_id:{token_id}", b""
            data = self._bytes_of(token_id)
            found = self._known[token_id] = _readable(data), data
        return found

    def _has_token(self, token_id: int) -> bool:
        vocabulary = self._vocabulary
        return token_id in (vocabulary.full if isinstance(vocabulary, ByteLevelTable) else vocabulary.known)

    def _bytes_of(self, token_id: int) -> bytes:
        vocabulary = self._vocabulary
        if isinstance(vocabulary, ByteLevelTable):
            return vocabulary.full[token_id]
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
