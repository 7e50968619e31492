"""The size of a text at which it is refused."""

from __future__ import annotations

import pytest

from services.common.errors import ContextLengthExceeded, PostroadError, TooLarge
from services.tokenizer.text_limit import TextLimit

MIB = 1 << 20


@pytest.mark.parametrize(
    ("limit", "most", "refusal"),
    [
        (TextLimit(1, 10, 7), 70, ContextLengthExceeded),
        (TextLimit(1, 0, 7), MIB, TooLarge),
        (TextLimit(1, MIB, 7), MIB, TooLarge),
    ],
)
@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_text_is_taken_up_to_the_bound(
    limit: TextLimit, most: int, refusal: type[PostroadError], letter: str
) -> None:
    count = most // len(letter.encode())
    limit.check(letter * count, "texts[0]")
    with pytest.raises(refusal) as raised:
        limit.check(letter * (count + 1), "texts[0]")
    assert raised.value.param == "texts[0]"


def test_a_text_over_both_bounds_would_not_fit_later_either() -> None:
    with pytest.raises(ContextLengthExceeded):
        TextLimit(1, 10, 7).check("x" * (MIB + 1), "texts[0]")
