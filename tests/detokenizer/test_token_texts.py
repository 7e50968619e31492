"""Single tokens as text and bytes."""

from __future__ import annotations

from tokenizers import Tokenizer

from services.detokenizer.decode import read_vocabulary
from services.detokenizer.token_texts import TokenTexts


def texts_of(tokenizer: Tokenizer) -> TokenTexts:
    return TokenTexts(read_vocabulary(tokenizer))


def test_byte_level_tokens_are_their_bytes(smollm2: Tokenizer) -> None:
    texts = texts_of(smollm2)
    text = " Héllo 日本 😀<|im_end|>"
    ids = smollm2.encode(text, add_special_tokens=False).ids
    assert b"".join(texts(token_id)[1] for token_id in ids) == text.encode()
    for token_id in ids:
        token, data = texts(token_id)
        whole = "\ufffd" not in data.decode(errors="replace")
        assert token == (data.decode() if whole else "".join(f"\\x{byte:02x}" for byte in data))
    assert texts(2) == ("<|im_end|>", b"<|im_end|>")
    assert any(texts(token_id)[0].startswith("\\x") for token_id in ids)


def test_an_id_without_a_token_is_its_number_without_bytes(smollm2: Tokenizer, sentencepiece: Tokenizer) -> None:
    for tokenizer in (smollm2, sentencepiece):
        texts = texts_of(tokenizer)
        assert texts(10**6) == ("token_id:1000000", b"")


def test_words_of_sentencepiece_have_their_space(sentencepiece: Tokenizer) -> None:
    texts = texts_of(sentencepiece)
    ids = {token: sentencepiece.token_to_id(token) for token in ("▁hell", "o", "<0xE6>", "▁", "日", "<s>")}
    assert texts(ids["▁hell"]) == (" hell", b" hell")
    assert texts(ids["o"]) == ("o", b"o")
    assert texts(ids["<0xE6>"]) == ("\\xe6", b"\xe6")
    assert texts(ids["▁"]) == (" ", b" ")
    assert texts(ids["日"]) == ("日", "日".encode())
    assert texts(ids["<s>"]) == ("<s>", b"<s>")


def test_word_pieces_go_on_with_a_word_or_begin_one(wordpiece: Tokenizer) -> None:
    texts = texts_of(wordpiece)
    assert texts(wordpiece.token_to_id("play"))[0] == " play"
    assert texts(wordpiece.token_to_id("##ing"))[0] == "ing"
    assert texts(wordpiece.token_to_id("[SEP]"))[0] == "[SEP]"
