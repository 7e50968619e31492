"""Incremental decoding against the tokenizer's own decoding of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.detokenizer.decode import (
    ByteLevelDecoder,
    DecoderFactory,
    WindowDecoder,
    byte_level_table,
    make_decoder_factory,
    window_vocabulary,
)

EMOJI = "😀"  # two tokens in SmolLM2, four bytes
HARD_TEXTS = [
    "Grüße, 世界! 👩‍👩‍👧‍👦 🇩🇪 नमस्ते",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀 \u0301e\u0301",
    "a\ufffdb",
    "  two spaces,\n\ttab\r\n",
    "ﷺ" * 5,
]
cuts = st.lists(st.integers(1, 5), min_size=1)
# Assigned characters: SmolLM2's vocabulary lacks some control characters and the bytes of unassigned planes.
_assigned = st.characters(exclude_categories=["Cc", "Cn", "Co", "Cs"], include_characters="\n\t")
unicode_text = st.text(_assigned, max_size=40)


@pytest.fixture(scope="module")
def smollm2_factory(smollm2: Tokenizer) -> DecoderFactory:
    return make_decoder_factory(smollm2)


@pytest.fixture(scope="module")
def smollm2_window_factory(smollm2: Tokenizer) -> DecoderFactory:
    """The general decoder, on the tokenizer that does not need it."""
    return partial(WindowDecoder, window_vocabulary(smollm2))


@pytest.fixture(scope="module")
def sentencepiece_factory(sentencepiece: Tokenizer) -> DecoderFactory:
    return make_decoder_factory(sentencepiece)


def pieces(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """Cuts ids into pushes of the given sizes, over and over."""
    out, at, turn = [], 0, 0
    while at < len(ids):
        size = sizes[turn % len(sizes)]
        out.append(ids[at : at + size])
        at, turn = at + size, turn + 1
    return out


def run(
    make: DecoderFactory,
    prompt: Sequence[int],
    ids: Sequence[int],
    sizes: Sequence[int] = (1,),
    *,
    skip_special_tokens: bool = True,
) -> str:
    """The whole text of a stream."""
    decoder = make(prompt, skip_special_tokens=skip_special_tokens)
    return "".join(decoder.push(part) for part in pieces(ids, sizes)) + decoder.flush()


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert isinstance(ids, list)
    return ids


def complete(text: str) -> str:
    """What a decoded prompt shows completely: an incomplete character stands as one U+FFFD at its end."""
    return text.removesuffix("\ufffd")


# --- the choice of decoder ---


def test_byte_level_tokenizer_gets_the_table(smollm2: Tokenizer, smollm2_factory: DecoderFactory) -> None:
    assert isinstance(smollm2_factory([], skip_special_tokens=True), ByteLevelDecoder)
    assert byte_level_table(smollm2) is not None


def test_other_tokenizers_get_windows(sentencepiece: Tokenizer, wordpiece: Tokenizer, wordlevel: Tokenizer) -> None:
    for tokenizer in (sentencepiece, wordpiece, wordlevel):
        assert isinstance(make_decoder_factory(tokenizer)([], skip_special_tokens=True), WindowDecoder)


def test_added_tokens_stand_for_themselves_or_as_the_tokenizer_says(smollm2: Tokenizer) -> None:
    extended = Tokenizer.from_str(smollm2.to_str())
    extended.add_tokens(["<日本>", "plain token", "é"])
    ids = [extended.token_to_id(token) for token in ("<日本>", "plain token", "é")]
    make = make_decoder_factory(extended)
    assert isinstance(make([], skip_special_tokens=True), ByteLevelDecoder)
    assert run(make, [], ids) == extended.decode(ids)
    assert run(make, [], ids[:2]) == "<日本>plain token"


# --- fieldbugs 1 and 2: split characters ---


@given(text=st.one_of(unicode_text, st.sampled_from(HARD_TEXTS)), sizes=cuts)
def test_fieldbug_01_split_characters_are_held_back(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, text: str, sizes: list[int]
) -> None:
    """No U+FFFD that is not in the text, at no point of the stream, and nothing vanishes."""
    ids = encode(smollm2, text)
    decoder = smollm2_factory([], skip_special_tokens=True)
    seen = ""
    for part in pieces(ids, sizes):
        seen += decoder.push(part)
        assert text.startswith(seen)
    assert decoder.flush() == ""
    assert seen == text


@given(text=st.text(st.sampled_from("he llo wor日é€😀\ufffd"), max_size=30), sizes=cuts)
def test_fieldbug_01_split_characters_with_byte_fallback(
    sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory, text: str, sizes: list[int]
) -> None:
    ids = encode(sentencepiece, "a" + text)
    prompt, generated = ids[:1], ids[1:]
    assert (
        run(sentencepiece_factory, prompt, generated, sizes)
        == sentencepiece.decode(ids)[len(sentencepiece.decode(prompt)) :]
    )


def test_fieldbug_01_bytes_that_cannot_become_a_character_are_not_held(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory
) -> None:
    continuation = smollm2.token_to_id("Ģ")  # byte 0x80
    lead = smollm2.token_to_id("ð")  # byte 0xF0
    decoder = smollm2_factory([], skip_special_tokens=True)
    assert [decoder.push([continuation]) for _ in range(3)] == ["\ufffd"] * 3
    assert decoder.push([lead]) == ""
    assert decoder.push([lead]) == "\ufffd"
    assert decoder.flush() == "\ufffd"


def test_fieldbug_01_a_window_holds_three_tokens_at_most(
    smollm2: Tokenizer, smollm2_window_factory: DecoderFactory
) -> None:
    decoder = smollm2_window_factory([], skip_special_tokens=True)
    continuation = smollm2.token_to_id("Ģ")  # byte 0x80
    assert [decoder.push([continuation]) for _ in range(4)] == ["", "", "", "\ufffd" * 4]


def test_fieldbug_01_wrong_fallback_bytes_are_not_held(
    sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory
) -> None:
    byte = {value: sentencepiece.token_to_id(f"<0x{value:02X}>") for value in range(256)}
    decoder = sentencepiece_factory(encode(sentencepiece, "a"), skip_special_tokens=True)
    assert decoder.push([byte[0xFF]]) == "\ufffd"
    euro = [byte[value] for value in "€".encode()]
    assert [decoder.push([i]) for i in euro] == ["", "", "€"]
    assert decoder.push([byte[0xE2], byte[0x82]]) == ""
    assert decoder.push([sentencepiece.token_to_id("▁hell")]) == "\ufffd\ufffd hell"


@given(text=unicode_text.filter(bool), data=st.data())
def test_fieldbug_02_tail_cut_in_mid_character_is_flushed(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, text: str, data: st.DataObject
) -> None:
    """A stream that max_tokens cuts anywhere ends with the tail that the tokenizer renders for the whole."""
    ids = encode(smollm2, text)
    ids = ids[: data.draw(st.integers(1, len(ids)))]
    assert run(smollm2_factory, [], ids) == smollm2.decode(ids)


def test_fieldbug_02_tail_of_fallback_bytes(sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory) -> None:
    prompt, euro = encode(sentencepiece, "a"), encode(sentencepiece, "a€")[-3:]
    for length in (1, 2, 3):
        whole = sentencepiece.decode(prompt + euro[:length])
        assert run(sentencepiece_factory, prompt, euro[:length]) == whole.removeprefix("a")


# --- the definition: whole text minus the prompt's complete text ---


@settings(max_examples=200)
@given(data=st.data(), sizes=cuts, skip=st.booleans())
def test_random_ids_equal_the_tokenizers_decoding(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, data: st.DataObject, sizes: list[int], skip: bool
) -> None:
    """Special ids, single bytes and whole words in any order. The prompt ends with a complete character."""
    ids = data.draw(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 49151)), max_size=30))
    prompt = encode(smollm2, "The prompt: " + data.draw(st.sampled_from(["", "é", EMOJI])))
    shown = smollm2.decode(prompt, skip_special_tokens=False)
    whole = smollm2.decode(prompt + ids, skip_special_tokens=skip)
    assert shown + run(smollm2_factory, prompt, ids, sizes, skip_special_tokens=skip) == whole


@given(text=st.one_of(unicode_text, st.sampled_from(HARD_TEXTS)), data=st.data())
def test_both_decoders_agree(
    smollm2: Tokenizer,
    smollm2_factory: DecoderFactory,
    smollm2_window_factory: DecoderFactory,
    text: str,
    data: st.DataObject,
) -> None:
    """Also where text is cut in mid-character, by the prompt's end or by the output's.

    Only a table can tell a U+FFFD of the text itself that is spread over tokens from an incomplete character.
    """
    ids = encode(smollm2, text.replace("\ufffd", "?"))
    start = data.draw(st.integers(0, len(ids)))
    end = data.draw(st.integers(start, len(ids)))
    skip = data.draw(st.booleans())
    by_table, by_window = (
        run(make, ids[:start], ids[start:end], skip_special_tokens=skip)
        for make in (smollm2_factory, smollm2_window_factory)
    )
    assert by_window == by_table


@given(ids=st.lists(st.integers(259, 283), max_size=40), sizes=cuts)
def test_sentencepiece_ids_of_pieces_equal_the_tokenizers_decoding(
    sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory, ids: list[int], sizes: list[int]
) -> None:
    prompt = encode(sentencepiece, "hell")
    whole = sentencepiece.decode(prompt + ids)
    assert "hell" + run(sentencepiece_factory, prompt, ids, sizes) == whole


@given(ids=st.lists(st.integers(0, 13), max_size=40), sizes=cuts, skip=st.booleans())
def test_wordpiece_equals_the_tokenizers_decoding(
    wordpiece: Tokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    make = make_decoder_factory(wordpiece)
    prompt = [wordpiece.token_to_id("the")]
    whole = wordpiece.decode(prompt + ids, skip_special_tokens=skip)
    assert "the" + run(make, prompt, ids, sizes, skip_special_tokens=skip) == whole


@given(ids=st.lists(st.integers(0, 7), max_size=40), sizes=cuts, skip=st.booleans())
def test_wordlevel_equals_the_tokenizers_decoding(
    wordlevel: Tokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    make = make_decoder_factory(wordlevel)
    prompt = [wordlevel.token_to_id("one")]
    whole = wordlevel.decode(prompt + ids, skip_special_tokens=skip)
    assert "one" + run(make, prompt, ids, sizes, skip_special_tokens=skip) == whole


# --- fieldbug 3: the prompt's text ---


@pytest.mark.parametrize("text", [EMOJI, "👩‍👩‍👧‍👦", "日本", "𓀀", "é"])
def test_fieldbug_03_a_whole_character_at_the_prompts_end_does_not_leak(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, smollm2_window_factory: DecoderFactory, text: str
) -> None:
    prompt, generated = encode(smollm2, "Prompt " + text), encode(smollm2, " answer")
    for make in (smollm2_factory, smollm2_window_factory):
        assert run(make, prompt, generated) == " answer"


@given(text=unicode_text.filter(bool), data=st.data())
def test_fieldbug_03_prompt_that_ends_in_mid_character(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, text: str, data: st.DataObject
) -> None:
    """A character that the output completes comes once and whole; no other text of the prompt comes."""
    ids = encode(smollm2, text)
    cut = data.draw(st.integers(0, len(ids) - 1))
    prompt_text = smollm2.decode(ids[:cut], skip_special_tokens=False)
    if not text.startswith(prompt_text):
        prompt_text = complete(prompt_text)
    generated = run(smollm2_factory, ids[:cut], ids[cut:], skip_special_tokens=False)
    assert prompt_text + generated == text


def test_fieldbug_03_prompt_that_ends_in_mid_character_of_fallback_bytes(
    sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory
) -> None:
    """Cut after each of its bytes: € of three, 😀 of four; 日 and é are pieces of their own."""
    ids = encode(sentencepiece, "hell日€😀é or")
    texts = [run(sentencepiece_factory, ids[:cut], ids[cut:]) for cut in range(1, len(ids) + 1)]
    assert texts == ["日€😀é or"] + ["€😀é or"] * 3 + ["😀é or"] * 4 + ["é or", " or", "or", ""]


def test_fieldbug_03_nothing_generated_is_no_text(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory
) -> None:
    """The unfinished character belongs to the prompt while the output has added nothing to it."""
    assert run(smollm2_factory, encode(smollm2, EMOJI)[:1], []) == ""
    assert run(smollm2_factory, encode(smollm2, EMOJI)[:1], [2]) == ""
    assert run(sentencepiece_factory, encode(sentencepiece, "a€")[:-1], []) == ""


def test_fieldbug_03_first_sentencepiece_token_keeps_its_space(
    sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory
) -> None:
    hell = sentencepiece.token_to_id("▁hell")
    special = [sentencepiece.token_to_id("</s>")]
    assert run(sentencepiece_factory, encode(sentencepiece, "a"), [hell]) == " hell"
    assert run(sentencepiece_factory, encode(sentencepiece, "a") + special * 9, [hell]) == " hell"
    assert run(sentencepiece_factory, encode(sentencepiece, "a€"), [hell]) == " hell"
    assert run(sentencepiece_factory, special, [hell]) == "hell"


def test_fieldbug_03_replacement_character_in_the_prompt_does_not_leak(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory
) -> None:
    assert run(smollm2_factory, encode(smollm2, "x\ufffd"), encode(smollm2, "y")) == "y"
    assert run(sentencepiece_factory, encode(sentencepiece, "a\ufffd"), [sentencepiece.token_to_id("b")]) == "b"


# --- fieldbugs 4 and 5: one request does not affect another ---


@pytest.mark.parametrize("odd_id", [49152, 999_999, 2**32 - 1])
@pytest.mark.parametrize("sizes", [(1,), (2,), (7,)])
def test_fieldbug_04_an_id_without_a_token_is_no_text(
    smollm2: Tokenizer,
    smollm2_factory: DecoderFactory,
    smollm2_window_factory: DecoderFactory,
    odd_id: int,
    sizes: tuple[int, ...],
) -> None:
    text = "before " + EMOJI + " and after"
    ids = [mixed for token_id in encode(smollm2, text) for mixed in (odd_id, token_id)]
    for make in (smollm2_factory, smollm2_window_factory):
        for skip in (True, False):
            assert run(make, [], [*ids, odd_id], sizes, skip_special_tokens=skip) == text
        assert run(make, encode(smollm2, EMOJI)[:-1], [odd_id], sizes) == ""


def test_fieldbug_04_an_id_without_a_token_among_fallback_bytes(
    sentencepiece: Tokenizer, sentencepiece_factory: DecoderFactory
) -> None:
    ids = encode(sentencepiece, "a€b")
    mixed = [mixed for token_id in ids for mixed in (999_999, token_id)]
    assert run(sentencepiece_factory, [], mixed) == run(sentencepiece_factory, [], ids) == "a€b"


def test_fieldbug_04_odd_prompt_id_is_passed_over(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, smollm2_window_factory: DecoderFactory
) -> None:
    """An engine's vocabulary may be padded beyond the tokenizer's."""
    for make in (smollm2_factory, smollm2_window_factory):
        assert run(make, [50_000, *encode(smollm2, "a"), 50_000], encode(smollm2, " b")) == " b"


def test_fieldbug_05_special_tokens_are_skipped_per_request(
    smollm2: Tokenizer, smollm2_factory: DecoderFactory, smollm2_window_factory: DecoderFactory
) -> None:
    ids = [smollm2.token_to_id("<|im_start|>"), *encode(smollm2, "hi"), smollm2.token_to_id("<|im_end|>")]
    for make in (smollm2_factory, smollm2_window_factory):
        skipping, keeping = make([], skip_special_tokens=True), make([], skip_special_tokens=False)
        texts = ["", ""]
        for token_id in ids:
            texts[0] += skipping.push([token_id])
            texts[1] += keeping.push([token_id])
        assert texts == ["hi", "<|im_start|>hi<|im_end|>"]
