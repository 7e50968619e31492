"""Stop strings in streams, against a search in the whole text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.detokenizer.stop import StopMatcher

narrow_text = st.text(st.sampled_from("abc"), max_size=30)
stop_lists = st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=6), max_size=5)


def first_match(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Start and end of the match that ends first, the longest of several; by trying every end and start."""
    for end in range(len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return start, end
    return None


def run(matcher: StopMatcher, parts: list[str]) -> tuple[list[str], str | None]:
    """The deltas of a stream, the flushed one included, and the match."""
    deltas = []
    for part in parts:
        visible, matched = matcher.push(part)
        deltas.append(visible)
        if matched is not None:
            return deltas, matched
    return [*deltas, matcher.flush()], None


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


@settings(max_examples=400)
@given(text=narrow_text, stops=stop_lists, places=st.lists(st.integers(0, 100)), include=st.booleans())
def test_fieldbug_07_deltas_are_the_text_cut_at_the_first_stop(
    text: str, stops: list[str], places: list[int], include: bool
) -> None:
    """However the text is cut into pushes, no part of the matched stop is shown unless it is asked for."""
    deltas, matched = run(StopMatcher(stops, include), cut(text, places))
    match = first_match(text, stops)
    if match is None:
        assert ("".join(deltas), matched) == (text, None)
    else:
        start, end = match
        assert ("".join(deltas), matched) == (text[: end if include else start], text[start:end])


@given(text=narrow_text, stops=stop_lists)
def test_fieldbug_07_no_more_is_held_back_than_may_become_a_stop(text: str, stops: list[str]) -> None:
    """After each character exactly the longest end of the text that begins a stop string is held."""
    matcher = StopMatcher(stops, include_match=False)
    shown = ""
    for count, char in enumerate(text, start=1):
        visible, matched = matcher.push(char)
        shown += visible
        if matched is not None:
            return
        seen = text[:count]
        held = max((k for k in range(count + 1) if any(s.startswith(seen[count - k :]) for s in stops)), default=0)
        assert shown == seen[: count - held]


def test_fieldbug_07_stop_string_that_spans_pushes_is_not_shown() -> None:
    matcher = StopMatcher(["</answer>"], include_match=False)
    assert matcher.push("42 <") == ("42 ", None)
    assert matcher.push("/ans") == ("", None)
    assert matcher.push("wer> more") == ("", "</answer>")


def test_fieldbug_08_held_text_that_never_completes_is_flushed() -> None:
    matcher = StopMatcher(["###"], include_match=False)
    assert matcher.push("a##") == ("a", None)
    assert matcher.flush() == "##"
    assert matcher.flush() == ""


def test_fieldbug_08_held_text_is_shown_once_it_cannot_complete() -> None:
    matcher = StopMatcher(["aab"], include_match=False)
    assert matcher.push("aa") == ("", None)
    assert matcher.push("a") == ("a", None)
    assert matcher.push("c") == ("aac", None)


def test_the_stop_that_completes_first_wins_and_the_longest_of_those() -> None:
    assert StopMatcher(["abcdef", "cd"], include_match=False).push("abcdef") == ("ab", "cd")
    assert StopMatcher(["d", "cd", "bcd"], include_match=False).push("abcd") == ("a", "bcd")
    assert StopMatcher(["ab", "abc"], include_match=True).push("abc") == ("ab", "ab")


def test_included_match_is_shown_without_holding_back() -> None:
    matcher = StopMatcher(["END"], include_match=True)
    assert matcher.push("the EN") == ("the EN", None)
    assert matcher.push("D.") == ("D", "END")
    unmatched = StopMatcher(["END"], include_match=True)
    assert unmatched.push("EN") == ("EN", None)
    assert unmatched.flush() == ""


def test_stops_while_not_armed_are_text() -> None:
    matcher = StopMatcher(["END"], include_match=False)
    assert matcher.push("END.EN", armed=False) == ("END.", None)
    assert matcher.push("D.") == ("", "END")


def test_unarmed_stop_is_not_held_back_when_complete() -> None:
    matcher = StopMatcher(["END", "other"], include_match=False)
    assert matcher.push("the END", armed=False) == ("the END", None)


def test_unarmed_match_inside_held_text_is_not_found_later() -> None:
    matcher = StopMatcher(["abcd", "bc"], include_match=False)
    assert matcher.push("abc", armed=False) == ("", None)
    assert matcher.push("e") == ("abce", None)


def test_long_stops_that_nearly_match() -> None:
    """Sixteen stops of 1,024 characters; 20,000 characters that begin all of them again and again."""
    stops = ["a" * 1023 + chr(ord("b") + i) for i in range(16)]
    matcher = StopMatcher(stops, include_match=False)
    shown = "".join(matcher.push("aaaa")[0] for _ in range(5000))
    assert len(shown) == 20_000 - 1023
    assert matcher.push("q") == ("", stops[15])


def test_fieldbug_12_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""], include_match=False)
