"""`best_of`: of several choices of a prompt the best ones are answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.gateway.api.choices import WholeChoice


def best_choices(choices: Sequence[WholeChoice], *, of: int, count: int) -> Sequence[WholeChoice]:
    """Of each prompt's `of` choices the `count` with the highest log-probability per token, the best one first.

    `choices` are those of all prompts, in order; the chosen ones are numbered anew. Equals stay in order.
    """
    if of == count:
        return choices
    prompts = [choices[start : start + of] for start in range(0, len(choices), of)]
    best = [choice for prompt in prompts for choice in sorted(prompt, key=_badness)[:count]]
    return [replace(choice, index=index) for index, choice in enumerate(best)]


def _badness(choice: WholeChoice) -> float:
    assert choice.mean_logprob is not None, "choices that are compared have log-probabilities"
    return -choice.mean_logprob
