"""Tokenizers of every kind: the default model's (byte-level), and small ones whose vocabulary a test can oversee."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from services.engine.loading.gguf_file import read_gguf
from services.engine.loading.gguf_tokenizer import tokenizer_files
from services.engine.loading.source import resolve


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    """SmolLM2's byte-level BPE: 49,152 tokens, ids 0 to 16 are special."""
    files = tokenizer_files(read_gguf(resolve("default").path))
    return Tokenizer.from_buffer(files["tokenizer.json"])


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """As Llama 2's: ▁ for spaces, bytes for what the vocabulary lacks, the text's first space stripped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdehlnorwé日\ufffd", "▁a", "▁b", "he", "ll", "hell", "▁hell", "▁w", "or", "ld", "▁wor"]
    merges = [("▁", "a"), ("▁", "b"), ("h", "e"), ("l", "l"), ("he", "ll"), ("▁", "hell"), ("▁", "w"), ("o", "r")]
    merges += [("l", "d"), ("▁w", "or")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@pytest.fixture(scope="session")
def wordpiece() -> Tokenizer:
    """As BERT's: a space before each token but the first and those that begin with ##."""
    words = ["[UNK]", "[CLS]", "[SEP]", "play", "##ing", "##ed", "the", "game", ".", ",", "is", "n", "'", "t"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return tokenizer


@pytest.fixture(scope="session")
def wordlevel() -> Tokenizer:
    """Whole words and no decoder: tokens are joined by spaces."""
    words = ["<unk>", "<pad>", "one", "two", "three", "été", "日本"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.add_special_tokens([AddedToken("<pad>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return tokenizer
