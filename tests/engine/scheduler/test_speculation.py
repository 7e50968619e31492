"""How much of what could be guessed is guessed."""

from services.engine.scheduler.speculation import Speculation

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]  # 3, 4, 5 … followed


def num_guesses(speculation: Speculation, price: float, limit: int = 100) -> int:
    return len(speculation.guess(TEXT, [], limit, price))


def test_cheap_rows_let_all_be_guessed_and_dear_ones_nothing() -> None:
    speculation = Speculation(5)
    assert num_guesses(speculation, price=0.0) == 5
    assert num_guesses(speculation, price=1.0) == 0
    assert 0 < num_guesses(speculation, price=0.2) < 5
    assert num_guesses(speculation, price=0.0, limit=3) == 3
    assert num_guesses(speculation, price=0.0, limit=0) == 0


def test_guesses_that_hold_are_worth_a_higher_price() -> None:
    speculation = Speculation(5)
    for _ in range(30):
        speculation.note(5, 5)
    assert speculation.chance > 0.9
    assert num_guesses(speculation, price=0.5) == 5
    for _ in range(30):
        speculation.note(5, 1)
    assert 0.45 < speculation.chance < 0.55  # of each check two guesses count: one held, the next did not
    assert num_guesses(speculation, price=0.3) == 1


def test_speculation_that_does_not_pay_stops_and_is_tried_again_later() -> None:
    speculation = Speculation(5)
    while num_guesses(speculation, price=0.3):
        speculation.note(1, 0)
    pause = 0
    while not num_guesses(speculation, price=0.3):
        pause += 1
    assert 10 < pause < 100


def test_a_text_without_repetition_costs_no_record() -> None:
    speculation = Speculation(5)
    before = speculation.chance
    assert speculation.guess([1, 2, 3, 4], [], 10, 0.0) == []
    assert speculation.chance == before
