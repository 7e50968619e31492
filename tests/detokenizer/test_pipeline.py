"""Decoding and stop strings together, on the default model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.detokenizer.decode import DecoderFactory, make_decoder_factory
from services.detokenizer.pipeline import Output, TextPipeline
from services.detokenizer.stop import StopMatcher

IM_END = 2
EMOJI = "😀"
ALPHABET = st.sampled_from("ab \n日é😀")
short_text = st.text(ALPHABET, min_size=1, max_size=30)


@pytest.fixture(scope="module")
def make_decoder(smollm2: Tokenizer) -> DecoderFactory:
    return make_decoder_factory(smollm2)


def pipeline(
    make_decoder: DecoderFactory,
    stops: Sequence[str] = (),
    *,
    include: bool = False,
    min_tokens: int = 0,
    skip_special_tokens: bool = True,
    note_offsets: bool = False,
) -> TextPipeline:
    decoder = make_decoder([], skip_special_tokens=skip_special_tokens)
    return TextPipeline(decoder, StopMatcher(stops, include), min_tokens, note_offsets=note_offsets)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert isinstance(ids, list)
    return ids


@given(data=st.data(), text=short_text, stops=st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4))
def test_fieldbug_07_stream_is_the_whole_text_cut_at_the_first_stop(
    smollm2: Tokenizer, make_decoder: DecoderFactory, data: st.DataObject, text: str, stops: list[str]
) -> None:
    """For any cut into pushes; and the token that completed the stop is the last one counted."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1))
    min_tokens, include = data.draw(st.integers(0, 8)), data.draw(st.booleans())
    ids = encode(smollm2, text)
    # After how many tokens each character of the text is complete.
    complete_at = [
        next(n for n in range(len(ids) + 1) if smollm2.decode(ids[:n]).startswith(text[:end]))
        for end in range(len(text) + 1)
    ]
    expected, expected_tokens, expected_match = text, len(ids), None
    matches = [
        (end, start)
        for end in range(len(text) + 1)
        for start in range(end)
        if text[start:end] in stops and complete_at[end] > min_tokens
    ]
    if matches:
        end, start = min(matches)
        expected, expected_match = text[: end if include else start], text[start:end]
        expected_tokens = complete_at[end]

    request = pipeline(make_decoder, stops, include=include, min_tokens=min_tokens)
    shown, matched, at, turn, counted = "", None, 0, 0, 0
    while at < len(ids) and matched is None:
        size = sizes[turn % len(sizes)]
        output = request.push(ids[at : at + size])
        shown, matched, counted = shown + output.text, output.matched, counted + output.num_tokens
        assert expected.startswith(shown)
        at, turn = at + size, turn + 1
    shown += request.finish()
    assert (shown, matched, counted) == (expected, expected_match, expected_tokens)
    assert request.num_tokens == expected_tokens


def test_fieldbug_02_incomplete_tail_comes_with_the_end(smollm2: Tokenizer, make_decoder: DecoderFactory) -> None:
    request = pipeline(make_decoder, ["never"])
    assert request.push(encode(smollm2, "a" + EMOJI)[:-1]).text == "a"
    assert request.finish() == "\ufffd"


def test_fieldbug_04_an_id_without_a_token_counts_and_is_no_text(
    smollm2: Tokenizer, make_decoder: DecoderFactory
) -> None:
    assert pipeline(make_decoder).push([999_999]) == Output("", 1, None)
    request = pipeline(make_decoder, ["hello world"])
    hello, world = encode(smollm2, "hello world")
    assert request.push([999_999, hello, 999_999, world, hello]) == Output("", 4, "hello world")
    ended_by_it = pipeline(make_decoder, ["x"], include=True)
    assert (ended_by_it.finish(999_999), ended_by_it.num_tokens) == ("", 1)


def test_fieldbug_06_text_of_a_single_token_is_delivered(smollm2: Tokenizer, make_decoder: DecoderFactory) -> None:
    """max_tokens=1: the only token's text comes, at once or with the end."""
    (token_id,) = encode(smollm2, "hello")
    request = pipeline(make_decoder, ["hello world"])
    output = request.push([token_id])
    assert (output.text, output.num_tokens) == ("", 1)
    assert request.finish() == "hello"
    assert pipeline(make_decoder).push([token_id]) == Output("hello", 1, None)


def test_fieldbug_07_no_text_follows_a_match(smollm2: Tokenizer, make_decoder: DecoderFactory) -> None:
    """Tokens that were on their way when the stop string was found change nothing."""
    request = pipeline(make_decoder, [" world"])
    ids = encode(smollm2, "hello world and more")
    assert request.push(ids) == Output("hello", 2, " world")
    assert request.push(ids) == Output("", 0, " world")
    assert request.finish() == ""
    assert request.num_tokens == 2


def test_fieldbug_08_held_stop_beginning_is_flushed_without_a_token(
    smollm2: Tokenizer, make_decoder: DecoderFactory
) -> None:
    request = pipeline(make_decoder, [" world peace"])
    assert request.push(encode(smollm2, "hello world")).text == "hello"
    assert request.finish() == " world"


def test_fieldbug_08_held_stop_beginning_comes_before_the_incomplete_tail(
    smollm2: Tokenizer, make_decoder: DecoderFactory
) -> None:
    request = pipeline(make_decoder, ["a!"])
    assert request.push(encode(smollm2, "a" + EMOJI)[:-1]).text == ""
    assert request.finish() == "a\ufffd"


def test_fieldbug_09_stop_string_within_min_tokens_is_text(smollm2: Tokenizer, make_decoder: DecoderFactory) -> None:
    ids = encode(smollm2, " one two one two")
    assert len(ids) == 4
    request = pipeline(make_decoder, [" one", " two"], min_tokens=2)
    assert request.push(ids) == Output(" one two", 3, " one")


def test_fieldbug_09_stop_string_that_ends_after_min_tokens_matches(
    smollm2: Tokenizer, make_decoder: DecoderFactory
) -> None:
    ids = encode(smollm2, " one two one two")
    request = pipeline(make_decoder, [" two one"], min_tokens=2)
    assert [request.push([i]).text for i in ids[:2]] == [" one", ""]
    assert request.push(ids[2:]) == Output("", 1, " two one")


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_stop_token_is_counted_and_not_shown(
    smollm2: Tokenizer, make_decoder: DecoderFactory, skip_special_tokens: bool
) -> None:
    """Special or not, skipped or not."""
    hello, world = encode(smollm2, "hello world")
    for stop_token in (IM_END, world):
        request = pipeline(make_decoder, ["hello?"], skip_special_tokens=skip_special_tokens)
        request.push([hello])
        assert request.finish(stop_token) == "hello"
        assert request.num_tokens == 2


def test_stop_token_is_shown_where_matches_are(smollm2: Tokenizer, make_decoder: DecoderFactory) -> None:
    hello, world = encode(smollm2, "hello world")
    endings = {}
    for stop_token, skip in ((world, True), (IM_END, True), (IM_END, False)):
        request = pipeline(make_decoder, include=True, skip_special_tokens=skip)
        request.push([hello])
        endings[stop_token, skip] = request.finish(stop_token)
    assert endings == {(world, True): " world", (IM_END, True): "", (IM_END, False): "<|im_end|>"}


def test_stop_token_without_text_keeps_the_incomplete_tail(smollm2: Tokenizer, make_decoder: DecoderFactory) -> None:
    request = pipeline(make_decoder)
    assert request.push(encode(smollm2, "a" + EMOJI)[:-1]).text == "a"
    assert request.finish(IM_END) == "\ufffd"


@given(data=st.data(), text=short_text, stops=st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=3))
def test_each_token_begins_where_the_text_before_it_ends(
    smollm2: Tokenizer, make_decoder: DecoderFactory, data: st.DataObject, text: str, stops: list[str]
) -> None:
    """For any cut into pushes; characters that are incomplete or held back count where they will stand."""
    ids = encode(smollm2, text)
    begins = [len(smollm2.decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids) + 1)]
    one = pipeline(make_decoder, stops, include=data.draw(st.booleans()), note_offsets=True)
    found: list[int] = []
    rest = ids
    while rest:
        size = data.draw(st.integers(1, 4))
        output = one.push(rest[:size])
        rest = rest[size:]
        offsets = one.take_offsets()
        assert len(offsets) == output.num_tokens
        found += offsets
    one.finish(IM_END)
    found += one.take_offsets()
    assert len(found) == one.num_tokens
    assert found == begins[: len(found)]
    assert pipeline(make_decoder).take_offsets() == []
