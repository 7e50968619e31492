"""Guesses from a sequence's own text."""

import random

from services.engine.scheduler.prompt_lookup import PromptLookup


def guesses(token_ids: list[int], limit: int = 4) -> list[int]:
    return PromptLookup().follow(token_ids, [], limit)


def test_what_followed_the_last_tokens_before_is_guessed() -> None:
    assert guesses([1, 2, 3, 4, 5, 6, 7, 1, 2]) == [3, 4, 5, 6]
    assert guesses([1, 2, 3, 4, 5, 6, 7, 1, 2], limit=2) == [3, 4]


def test_the_last_place_counts() -> None:
    assert guesses([1, 2, 3, 3, 1, 2, 4, 4, 1, 2], limit=2) == [4, 4]


def test_more_tokens_in_common_go_before_a_later_place() -> None:
    assert guesses([1, 2, 3, 4, 9, 9, 3, 4, 8, 8, 1, 2, 3, 4], limit=2) == [9, 9]


def test_nothing_is_guessed_of_a_text_without_a_repetition() -> None:
    for length in range(8):
        assert guesses(list(range(length))) == []
    assert guesses([1, 2, 3, 1]) == []  # one token alone says too little
    assert guesses([1, 2, 3, 1, 2], limit=0) == []


def test_a_text_that_repeats_itself_is_guessed_beyond_its_end() -> None:
    assert guesses([7, 5, 5, 5], limit=5) == [5] * 5
    assert guesses([9, 1, 2, 3, 1, 2], limit=8) == [3, 1, 2, 3, 1, 2, 3, 1]


def test_prompt_and_output_are_one_text() -> None:
    lookup = PromptLookup()
    assert lookup.follow([1, 2, 3, 4], [], 4) == []
    assert lookup.follow([1, 2, 3, 4], [1], 4) == []
    assert lookup.follow([1, 2, 3, 4], [1, 2], 2) == [3, 4]
    assert lookup.follow([1, 2, 3, 4], [1, 2, 9, 2, 9], 2) == [2, 9]


def test_an_index_that_grew_by_pieces_guesses_as_a_new_one() -> None:
    rng = random.Random(0)
    token_ids = [rng.randrange(4) for _ in range(120)]
    for num_prompt in (1, 7, 50):
        prompt, lookup, end = token_ids[:num_prompt], PromptLookup(), num_prompt
        while end < len(token_ids):
            output = token_ids[num_prompt:end]
            assert lookup.follow(prompt, output, 5) == guesses(token_ids[:end], limit=5)
            end += rng.randrange(1, 6)
