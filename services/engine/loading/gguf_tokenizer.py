"""GGUF metadata → tokenizer.json and its companions.

A GGUF file holds a tokenizer's tokens, merges or scores, and names; how text is split before that stands in the name
alone (`tokenizer.ggml.pre`). Each name that is known here gets what the model's publisher wrote in tokenizer.json. An
unknown one is refused: a near miss would cost quality without a word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from services.engine.loading.errors import UnsupportedTokenizer
from services.engine.loading.gguf_file import GgufFile

WORD_START = "\u2581"  # stands for a space in SentencePiece vocabularies

# Words as GPT-4's tokenizer splits them, with digits in groups of one (Qwen 2) or up to three (Llama 3).
_SPLIT_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_files(file: GgufFile) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json and, if the file has one, chat_template.jinja.

    Every token keeps its id. Raises UnsupportedTokenizer for a kind of tokenizer that cannot be rebuilt exactly.
    """
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    vocabulary = _Vocabulary(file.metadata)
    if (kind := vocabulary.field("model")) not in builders:
        raise UnsupportedTokenizer(f"the tokenizer is of the kind {kind!r}; known are {', '.join(builders)}")
    tokenizer = builders[kind](vocabulary)
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(_config(file, vocabulary), ensure_ascii=False, indent=2).encode(),
    }
    if template := file.metadata.get("tokenizer.chat_template"):
        files["chat_template.jinja"] = template.encode()
    return files


class _Vocabulary:
    """The tokens of a GGUF file and what is said about them."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = self.field("tokens", [])
        types = self.field("token_type") or [TokenType.NORMAL] * len(self.tokens)
        if len(types) != len(self.tokens):
            raise UnsupportedTokenizer(f"the tokenizer has {len(self.tokens)} tokens and {len(types)} types of tokens")
        if unknown := set(types) - set(TokenType):
            raise UnsupportedTokenizer(f"the tokenizer has tokens of the unknown type {min(unknown)}")
        self.types = [TokenType(number) for number in types]
        # Unused tokens fill the embedding up to its size. No text gives them, and they have no text.
        self.ids = {token: id for id, token in enumerate(self.tokens) if self.types[id] is not TokenType.UNUSED}
        if len(self.ids) != sum(kind is not TokenType.UNUSED for kind in self.types):
            raise UnsupportedTokenizer("the tokenizer has two tokens of the same text")

    def field(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def named(self, name: str) -> str | None:
        """The text of the token that the field `{name}_token_id` points to."""
        id = self.field(f"{name}_token_id")
        return self.tokens[id] if id is not None and id < len(self.tokens) else None

    def of_type(self, kind: TokenType) -> list[str]:
        return [token for token, its_kind in zip(self.tokens, self.types, strict=True) if its_kind is kind]


@dataclass(frozen=True, slots=True)
class _Splitting:
    """What a publisher's tokenizer.json does to text before the merges, and its habits around them."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    nfc: bool = False
    whole_words_first: bool = False  # a word that is a token is not put together by merges
    starts_with_bos: bool = False  # unless the file says otherwise


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)


def _gpt2_single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_SPLIT_WORDS % digits), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)]
    )


def _splittings() -> dict[str, _Splitting]:
    """By the value of `tokenizer.ggml.pre`. Files from before that key existed have none or `default`: GPT-2's then."""
    gpt2 = _Splitting(_gpt2)
    llama3 = _Splitting(lambda: _words("{1,3}"), whole_words_first=True, starts_with_bos=True)
    return {
        "default": gpt2,
        "gpt-2": gpt2,
        "smollm": _Splitting(_gpt2_single_digits),
        "qwen2": _Splitting(lambda: _words(""), nfc=True),
        "llama-bpe": llama3,
    }


def _byte_level_bpe(vocabulary: _Vocabulary) -> Tokenizer:
    splittings = _splittings()
    name = vocabulary.field("pre", "default")
    if name not in splittings:
        raise UnsupportedTokenizer(f"the tokenizer splits text by the rule {name!r}; known are {', '.join(splittings)}")
    splitting = splittings[name]
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.field("merges", []))]
    _check_merges(merges, vocabulary)
    tokenizer = Tokenizer(BPE(vocabulary.ids, merges, ignore_merges=splitting.whole_words_first))
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, vocabulary)
    _add_ends(tokenizer, vocabulary, bos=splitting.starts_with_bos)
    return tokenizer


def _check_merges(merges: list[tuple[str, str]], vocabulary: _Vocabulary) -> None:
    for left, right in merges:
        if not {left, right, left + right} <= vocabulary.ids.keys():
            raise UnsupportedTokenizer(f"the tokenizer joins {left!r} and {right!r}, and one of the three is no token")


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> Tokenizer:
    """Llama 2's kind: scores in place of merges, bytes for what has no token, a space before the text."""
    if spaced := [token for token in vocabulary.of_type(TokenType.USER_DEFINED) if WORD_START in token]:
        raise UnsupportedTokenizer(f"the tokenizer has tokens of its own with spaces in them, such as {spaced[0]!r}")
    tokenizer = Tokenizer(
        BPE(
            vocabulary.ids,
            _merges_from_scores(vocabulary),
            unk_token=vocabulary.named("unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", WORD_START)
    decoding = [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.field("add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_START), spaces])
        tokenizer.decoder = decoders.Sequence([*decoding, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        tokenizer.decoder = decoders.Sequence(decoding)
    _add_tokens(tokenizer, vocabulary)
    _add_ends(tokenizer, vocabulary, bos=True)
    return tokenizer


def _merges_from_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores best; as a list of merges: all unions, best first."""
    scores = vocabulary.field("scores", [])
    if len(scores) != len(vocabulary.tokens):
        raise UnsupportedTokenizer(f"the tokenizer has {len(vocabulary.tokens)} tokens and {len(scores)} scores")
    pieces = {token: id for token, id in vocabulary.ids.items() if vocabulary.types[id] is TokenType.NORMAL}
    merges = []
    for piece, id in pieces.items():
        for middle in range(1, len(piece)):
            left, right = piece[:middle], piece[middle:]
            if left in pieces and right in pieces:
                merges.append((-scores[id], id, pieces[left], pieces[right]))
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for _, _, left, right in sorted(merges)]


def _add_tokens(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Tokens that are found in the text as they are, before it is split: special ones, and the model's own."""

    def added(kind: TokenType, *, special: bool) -> list[AddedToken]:
        return [AddedToken(token, special=special, normalized=False) for token in vocabulary.of_type(kind)]

    tokenizer.add_special_tokens(added(TokenType.CONTROL, special=True) + added(TokenType.UNKNOWN, special=True))
    tokenizer.add_tokens(added(TokenType.USER_DEFINED, special=False))


def _add_ends(tokenizer: Tokenizer, vocabulary: _Vocabulary, *, bos: bool) -> None:
    """Sets what goes before and after a text. `bos` counts where the file is silent."""
    before = vocabulary.named("bos") if vocabulary.field("add_bos_token", bos) else None
    after = vocabulary.named("eos") if vocabulary.field("add_eos_token", False) else None
    ends = [token for token in (before, after) if token]
    if not ends:
        return
    first = [*([before] if before else []), "$A", *([after] if after else [])]
    second = [f"{part.replace('$A', '$B')}:1" for part in first]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=first, pair=first + second, special_tokens=[(token, vocabulary.ids[token]) for token in ends]
    )


def _config(file: GgufFile, vocabulary: _Vocabulary) -> dict[str, Any]:
    """tokenizer_config.json. What goes before and after a text stands in tokenizer.json and is not repeated."""
    fields = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.metadata.get(f"{file.architecture}.context_length"),
        **{field: token for field, name in fields.items() if (token := vocabulary.named(name)) is not None},
    }
