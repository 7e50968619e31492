"""The loads are what their titles say."""

from __future__ import annotations

import pytest

from tests.bench.scenarios import FIRST_TOKEN, HIGHEST_ID, LOWEST_ID, OUTPUT_RATE, SCENARIOS, WIDTHS

NAMES = list(SCENARIOS)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_have_exact_lengths_and_ids_of_every_vocabulary(name: str) -> None:
    scenario = SCENARIOS[name]
    prompts = scenario.prompts(seed=1)
    assert [len(prompt) for prompt in prompts] == [scenario.prompt_tokens] * scenario.requests
    assert all(LOWEST_ID <= token < HIGHEST_ID for prompt in prompts for token in prompt)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_share_what_the_scenario_says_and_no_more(name: str) -> None:
    scenario = SCENARIOS[name]
    first, second, *_ = scenario.prompts(seed=1)
    assert first[: scenario.shared_tokens] == second[: scenario.shared_tokens]
    assert first[scenario.shared_tokens : scenario.shared_tokens + 8] != second[scenario.shared_tokens :][:8]


def test_prompts_of_another_seed_share_nothing() -> None:
    scenario = SCENARIOS["prefix"]
    assert scenario.prompts(seed=1) == scenario.prompts(seed=1)
    assert scenario.prompts(seed=1)[0][:8] != scenario.prompts(seed=2)[0][:8]


@pytest.mark.parametrize("name", NAMES)
def test_a_warm_up_has_the_same_shapes_and_is_shorter(name: str) -> None:
    scenario = SCENARIOS[name]
    warm_up = scenario.warm_up()
    assert warm_up.prompt_tokens == scenario.prompt_tokens
    assert warm_up.requests * warm_up.output_tokens <= 32
    assert warm_up.streams <= scenario.streams


@pytest.mark.parametrize("name", NAMES)
def test_every_width_has_a_goal(name: str) -> None:
    assert set(SCENARIOS[name].goals) == set(WIDTHS)


def test_a_ratio_above_1_is_better_whatever_the_metric() -> None:
    assert OUTPUT_RATE.ratio(ours=200, theirs=100) == 2
    assert FIRST_TOKEN.ratio(ours=50, theirs=100) == 2
