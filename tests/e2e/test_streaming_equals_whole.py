"""A streamed answer put together is the whole one, field by field."""

from __future__ import annotations

from copy import deepcopy

import pytest

from tests.e2e.folding import comparable, folded
from tests.e2e.sixty_answers import Answered
from tests.e2e.sixty_requests import REAL, SCRIPTED


def test_there_are_sixty() -> None:
    assert len(REAL) + len(SCRIPTED) == 60


@pytest.mark.parametrize("name", REAL)
def test_the_real_model_s_answer(real_answers: dict[str, Answered], name: str) -> None:
    answered = real_answers[name]
    assert folded(answered.events) == comparable(deepcopy(answered.whole))


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_scripted_answer(scripted_answers: dict[str, Answered], name: str) -> None:
    answered = scripted_answers[name]
    assert folded(answered.events) == comparable(deepcopy(answered.whole))
