"""The tokenizer that is built from a GGUF file, against slow reference tokenizers and transformers' own conversion."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from services.engine.loading.errors import UnsupportedTokenizer
from services.engine.loading.gguf_file import GgufFile, read_gguf
from services.engine.loading.gguf_tokenizer import tokenizer_files
from tests.engine.loading.gguf_files import write_gguf
from tests.engine.loading.reference_tokenizers import (
    GPT2_WORDS,
    LLAMA3_WORDS,
    QWEN2_WORDS,
    ByteLevelBpe,
    SentencePieceBpe,
)
from tests.support.models import default_gguf

TEXTS = [
    "",
    "Hello, world!",
    " leading and trailing  ",
    "It's the engineers' code; they'll say WE'VE seen it.",
    "1 22 333 4444 55555, 3.14159 and 2024-05-01T12:30",
    "½ ²³ ٣٤ Ⅷ 五 numbers that are no digits",
    "邮路把信从一站送到下一站。繁體字也行！",
    "日本語とかな、한국어도",
    "🙂👩‍👩‍👧‍👦🇩🇪 family ✉️",
    "def f(x):\n\treturn {\n        'a': x ** 2,  # é\n    }\n\n\n",
    "  \t \n\n   \r\n  spaces\u00a0and\u3000others   \n",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<repo_name>a/b<gh_stars>3 <|im_start|><|im_end|><|im_sta",
    "e\u0301 is not é, Å is not Å",
    "naïve façade — “quoted” … ٱلْعَرَبِيَّةُ हिन्दी עברית",
]

METADATA = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2"}


@pytest.fixture(scope="module")
def default() -> GgufFile:
    return read_gguf(default_gguf())


@pytest.fixture(scope="module")
def tokenizer(default: GgufFile) -> Tokenizer:
    return _built(default)


@pytest.fixture(scope="module")
def folder(default: GgufFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    for name, content in tokenizer_files(default).items():
        (path / name).write_bytes(content)
    return path


def _built(file: GgufFile) -> Tokenizer:
    return Tokenizer.from_buffer(tokenizer_files(file)["tokenizer.json"])


def _reference(file: GgufFile, words: str = GPT2_WORDS, **rules: bool) -> ByteLevelBpe:
    tokens = file.metadata["tokenizer.ggml.tokens"]
    return ByteLevelBpe(tokens, file.metadata["tokenizer.ggml.merges"], tokens[:17], words, **rules)


def _like_default(default: GgufFile, **changes: Any) -> GgufFile:
    """The default model's vocabulary under other rules. `changes` by the key's last part; None takes a key away."""
    metadata = dict(default.metadata) | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return GgufFile(default.path, {key: value for key, value in metadata.items() if value is not None}, default.tensors)


class TestDefaultModel:
    def test_encodes_like_the_reference_and_back(self, default: GgufFile, tokenizer: Tokenizer) -> None:
        reference = _reference(default, single_digits=True)
        for text in TEXTS:
            ids = tokenizer.encode(text).ids
            assert ids == reference.encode(text)
            assert tokenizer.decode(ids, skip_special_tokens=False) == text

    def test_encodes_any_text_like_the_reference(self, default: GgufFile, tokenizer: Tokenizer) -> None:
        reference = _reference(default, single_digits=True)
        specials = st.sampled_from(default.metadata["tokenizer.ggml.tokens"][:17])

        @settings(max_examples=200, deadline=None)
        @given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(TEXTS), specials), max_size=4).map("".join))
        def check(text: str) -> None:
            assert tokenizer.encode(text).ids == reference.encode(text)

        check()

    def test_ids_are_the_file_s(self, default: GgufFile, tokenizer: Tokenizer) -> None:
        tokens = default.metadata["tokenizer.ggml.tokens"]
        assert tokenizer.get_vocab_size() == len(tokens) == 49152
        assert [tokenizer.id_to_token(id) for id in range(len(tokens))] == tokens

    def test_control_tokens_are_special(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        assert sorted(added) == list(range(17))
        assert all(token.special for token in added.values())
        assert tokenizer.decode([1, 9906, 2, 16], skip_special_tokens=True) == tokenizer.decode([9906])

    def test_no_bos_is_added(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("x", add_special_tokens=True).ids == tokenizer.encode("x", add_special_tokens=False).ids

    def test_transformers_opens_the_folder(self, folder: Path, tokenizer: Tokenizer) -> None:
        opened = AutoTokenizer.from_pretrained(folder)
        for text in TEXTS:
            assert opened(text)["input_ids"] == tokenizer.encode(text).ids
        assert (opened.bos_token_id, opened.eos_token_id, opened.unk_token_id, opened.pad_token_id) == (1, 2, 0, 2)
        assert opened.model_max_length == 8192

    def test_chat_template(self, folder: Path) -> None:
        opened = AutoTokenizer.from_pretrained(folder)
        messages = [{"role": "user", "content": "hi"}]
        assert opened.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_transformers_own_conversion_differs_in_numbers_that_are_no_digits_alone(self, folder: Path) -> None:
        """It does not read `tokenizer.ggml.pre`, so it lacks the rule that each numeral stands alone.

        For 0 to 9 that comes out the same, since no merge of this vocabulary joins them to anything.
        """
        ours = AutoTokenizer.from_pretrained(folder)
        theirs = AutoTokenizer.from_pretrained(default_gguf().parent, gguf_file=default_gguf().name)
        different = [text for text in TEXTS if ours(text)["input_ids"] != theirs(text)["input_ids"]]
        assert different == ["½ ²³ ٣٤ Ⅷ 五 numbers that are no digits"]
        assert ours.chat_template == theirs.chat_template
        assert ours.special_tokens_map == theirs.special_tokens_map


class TestOtherSplittings:
    @pytest.mark.parametrize("pre", ["gpt-2", "default", None])
    def test_gpt2(self, pre: str | None, default: GgufFile) -> None:
        file = _like_default(default, pre=pre)
        built, reference = _built(file), _reference(file)
        for text in TEXTS:
            assert built.encode(text).ids == reference.encode(text)

    def test_qwen2(self, default: GgufFile) -> None:
        file = _like_default(default, pre="qwen2")
        built, reference = _built(file), _reference(file, QWEN2_WORDS)
        for text in TEXTS:
            assert built.encode(text).ids == reference.encode(unicodedata.normalize("NFC", text))

    def test_llama3(self, default: GgufFile) -> None:
        file = _like_default(default, pre="llama-bpe")
        built, reference = _built(file), _reference(file, LLAMA3_WORDS, whole_words_first=True)
        for text in TEXTS:
            assert built.encode(text).ids == reference.encode(text)

    def test_llama3_begins_with_bos_unless_told_otherwise(self, default: GgufFile) -> None:
        silent = _built(_like_default(default, pre="llama-bpe", add_bos_token=None))
        assert silent.encode("a").ids[0] == 1
        assert 1 not in silent.encode("a", add_special_tokens=False).ids
        assert 1 not in _built(_like_default(default, pre="llama-bpe", add_bos_token=False)).encode("a").ids

    @pytest.mark.parametrize(("bos", "eos"), [(True, False), (False, True), (True, True)])
    def test_what_the_file_says_of_both_ends(
        self, bos: bool, eos: bool, default: GgufFile, tokenizer: Tokenizer
    ) -> None:
        built = _built(_like_default(default, add_bos_token=bos, add_eos_token=eos))
        assert built.encode("a b").ids == [1] * bos + tokenizer.encode("a b").ids + [2] * eos


def _bpe(tmp_path: Path, typed: dict[str, TokenType], **fields: Any) -> GgufFile:
    metadata = {
        **METADATA,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(typed),
        "tokenizer.ggml.token_type": [int(kind) for kind in typed.values()],
        "tokenizer.ggml.merges": ["a b"],
        **{f"tokenizer.ggml.{name}": value for name, value in fields.items()},
    }
    return read_gguf(write_gguf(tmp_path / "model.gguf", {k: v for k, v in metadata.items() if v is not None}))


LETTERS = {"a": TokenType.NORMAL, "b": TokenType.NORMAL, "ab": TokenType.NORMAL, "Ġ": TokenType.NORMAL}


class TestKindsOfTokens:
    def test_user_defined_tokens_are_found_whole_and_shown(self, tmp_path: Path) -> None:
        tokens = {
            **LETTERS,
            "<tool>": TokenType.USER_DEFINED,
            "<|ende 终|>": TokenType.CONTROL,
            " b": TokenType.USER_DEFINED,
        }
        built = _built(_bpe(tmp_path, tokens))
        ids = built.encode("ab<tool>a b<|ende 终|>").ids
        assert ids == [2, 4, 0, 6, 5]
        assert built.decode(ids, skip_special_tokens=True) == "ab<tool>a b"
        assert built.decode(ids, skip_special_tokens=False) == "ab<tool>a b<|ende 终|>"

    def test_unused_tokens_have_no_text(self, tmp_path: Path) -> None:
        built = _built(_bpe(tmp_path, {**LETTERS, "[PAD4]": TokenType.UNUSED}))
        assert built.decode([0, 4, 1]) == "ab"
        assert built.id_to_token(4) is None

    def test_without_types_all_are_normal(self, tmp_path: Path) -> None:
        assert _built(_bpe(tmp_path, LETTERS, token_type=None)).encode("ab a").ids == [2, 3, 0]

    def test_without_template_there_is_no_template_file(self, tmp_path: Path) -> None:
        assert sorted(tokenizer_files(_bpe(tmp_path, LETTERS))) == ["tokenizer.json", "tokenizer_config.json"]

    def test_config_names_the_special_tokens(self, tmp_path: Path) -> None:
        files = tokenizer_files(_bpe(tmp_path, LETTERS, eos_token_id=2, bos_token_id=99))
        config = json.loads(files["tokenizer_config.json"])
        assert config["eos_token"] == "ab"
        assert "bos_token" not in config


class TestRefusals:
    def test_unknown_kind(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedTokenizer, match=r"kind 't5'.*gpt2, llama"):
            tokenizer_files(_bpe(tmp_path, LETTERS, model="t5"))

    def test_unknown_splitting(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedTokenizer, match=r"'tekken'.*smollm"):
            tokenizer_files(_bpe(tmp_path, LETTERS, pre="tekken"))

    def test_a_type_for_each_token(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedTokenizer, match="4 tokens and 2 types"):
            tokenizer_files(_bpe(tmp_path, LETTERS, token_type=[1, 1]))

    def test_unknown_type(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedTokenizer, match="unknown type 9"):
            tokenizer_files(_bpe(tmp_path, LETTERS, token_type=[1, 1, 9, 1]))

    def test_two_tokens_of_one_text(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedTokenizer, match="two tokens of the same text"):
            tokenizer_files(_bpe(tmp_path, LETTERS, token_type=[1, 1], tokens=["a", "a"]))

    def test_merge_of_tokens_that_do_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedTokenizer, match="joins 'a' and 'c'"):
            tokenizer_files(_bpe(tmp_path, LETTERS, merges=["a c"]))

    def test_sentencepiece_without_scores(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedTokenizer, match="4 tokens and 0 scores"):
            tokenizer_files(_bpe(tmp_path, LETTERS, model="llama"))

    def test_sentencepiece_with_spaces_in_tokens_of_its_own(self, tmp_path: Path) -> None:
        tokens = {**LETTERS, "▁▁": TokenType.USER_DEFINED}
        with pytest.raises(UnsupportedTokenizer, match="'▁▁'"):
            tokenizer_files(_bpe(tmp_path, tokens, model="llama", scores=[0.0] * 5))


SPECIAL = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _sentencepiece(pieces: list[str], **fields: Any) -> GgufFile:
    """Laid out as Llama 2's: special tokens, bytes, unions (best first), then letters, each of the scores -0, -1, …"""
    letters = ["▁", "a", "b", "c"]
    unions = [piece for piece in dict.fromkeys(pieces) if piece not in letters]
    tokens = [*SPECIAL, *BYTES, *unions, *letters]
    types = [*SPECIAL.values(), *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * (len(unions) + 4)]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(unions) + 4)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{name}": value for name, value in fields.items()},
    }
    return GgufFile(Path("llama.gguf"), metadata, {})


def _sentencepiece_reference(file: GgufFile) -> SentencePieceBpe:
    return SentencePieceBpe(
        file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.scores"], list(SPECIAL)
    )


class TestSentencePiece:
    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.text("▁abc", min_size=2, max_size=5), max_size=12),
        st.text("abc 邮🙂", max_size=24),
    )
    def test_joins_the_best_scored_neighbours(self, pieces: list[str], text: str) -> None:
        file = _sentencepiece(pieces)
        assert _built(file).encode(text, add_special_tokens=False).ids == _sentencepiece_reference(file).encode(text)

    @pytest.mark.parametrize("text", ["", "a", "ab cab", "  a   b", "邮a路 🙂", "\n\tb", "</s>"])
    def test_round_trip(self, text: str) -> None:
        built = _built(_sentencepiece(["▁a", "ab", "▁▁"]))
        assert built.decode(built.encode(text).ids[1:], skip_special_tokens=False) == text

    def test_special_tokens_and_spaces_after_them(self) -> None:
        file = _sentencepiece(["▁a"])
        built = _built(file)
        ids = built.encode("<s>a</s>a", add_special_tokens=False).ids
        assert ids == _sentencepiece_reference(file).encode("<s>a</s>a")
        assert [built.id_to_token(id) for id in ids] == ["<s>", "▁a", "</s>", "▁a"]

    def test_begins_with_bos_unless_told_otherwise(self) -> None:
        assert _built(_sentencepiece([])).encode("a").tokens == ["<s>", "▁", "a"]
        assert _built(_sentencepiece([], add_bos_token=False)).encode("a").tokens == ["▁", "a"]

    def test_without_a_space_before_the_text(self) -> None:
        built = _built(_sentencepiece(["▁a"], add_space_prefix=False))
        assert built.encode("a a").tokens == ["<s>", "a", "▁a"]
        assert built.decode(built.encode(" a").ids) == " a"
