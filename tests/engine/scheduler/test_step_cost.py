"""The price of a row, learned from how long steps took."""

import random

import pytest

from services.engine.scheduler.step_cost import StepCost


def test_before_the_first_step_a_few_rows_are_cheap_and_many_are_dear() -> None:
    cost = StepCost()
    assert cost.share_of_rows(1) < 0.1
    assert cost.share_of_rows(64) > 0.7


@pytest.mark.parametrize(("fixed", "per_row"), [(8.0, 0.5), (2.0, 1.0), (10.0, 0.0), (0.1, 1.0)])
def test_the_share_is_that_of_the_steps(fixed: float, per_row: float) -> None:
    rng, cost = random.Random(1), StepCost()
    for _ in range(200):
        rows = rng.choice([1, 1, 5, 9])
        cost.note(rows, (fixed + per_row * rows) * rng.uniform(0.99, 1.01))
    for rows in (8, 32):
        assert cost.share_of_rows(rows) == pytest.approx(per_row * rows / (fixed + per_row * rows), abs=0.15)


def test_steps_of_one_size_tell_nothing_of_others() -> None:
    cost, fresh = StepCost(), StepCost()
    for seconds in [0.01, 0.03, 0.011, 0.009] * 20:
        cost.note(8, seconds)
    assert cost.share_of_rows(8) == pytest.approx(fresh.share_of_rows(8))


def test_the_last_steps_count() -> None:
    cost = StepCost()
    for rows in [1, 9] * 100:
        cost.note(rows, 10.0)
    assert cost.share_of_rows(9) < 0.05
    for rows in [1, 9] * 150:
        cost.note(rows, float(rows))
    assert cost.share_of_rows(9) > 0.9


def test_no_measurement_makes_a_share_below_0_or_above_1() -> None:
    rising, falling, nothing = StepCost(), StepCost(), StepCost()
    for rows in [1, 9] * 50:
        rising.note(rows, 0.001 * rows * rows)
        falling.note(rows, 0.02 - 0.001 * rows)
        nothing.note(rows, 0.0)
    assert rising.share_of_rows(4) == 1.0
    assert falling.share_of_rows(4) == 0.0
    assert nothing.share_of_rows(4) == 0.0
