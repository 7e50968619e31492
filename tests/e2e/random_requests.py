"""Requests with random parameters from a seeded generator, and one of each kind that is refused."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.e2e.client import user
from tests.e2e.sixty_requests import NAMED_WEATHER, SCHEMA
from tests.e2e.tool_texts import TIME, WEATHER

Body = dict[str, Any]

WORDS = [
    "a",
    "the",
    "1",
    "2",
    "3",
    "Paris",
    "日本",
    "🙂",
    "def",
    "(",
    ")",
    "\n",
    "because",
    ",",
    ".",
    "letter",
    "horse",
]


def valid_request(random: Random) -> Body:
    """A chat or a text completion of a few tokens, greedy or with a seed."""
    body = _chat(random) if random.random() < 0.5 else _completion(random)
    body |= {"seed": random.randrange(-(2**63), 2**63), "max_tokens": random.randint(1, 9)}
    for name, draw in _PARAMETERS.items():
        if random.random() < 0.15:
            body[name] = draw(random)
    body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
    return body


def _text(random: Random) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(1, 24)))


def _chat(random: Random) -> Body:
    body: Body = {"messages": user(_text(random))}
    if random.random() < 0.3:
        body["messages"].insert(0, {"role": "system", "content": _text(random)})
    if random.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": random.randint(0, 3)}
    if random.random() < 0.2:
        body |= {"tools": [WEATHER, TIME], "tool_choice": random.choice(["auto", "none", "required", NAMED_WEATHER])}
    elif random.random() < 0.3:
        body |= random.choice(_FORMS)
    return body


def _completion(random: Random) -> Body:
    prompt = random.choice([_text(random), [_text(random), _text(random)], [random.randint(3, 40_000)] * 3])
    body: Body = {"prompt": prompt, "echo": random.random() < 0.2}
    if random.random() < 0.3:
        body["logprobs"] = random.randint(0, 3)
    return body


_FORMS: list[Body] = [
    {"response_format": SCHEMA},
    {"response_format": {"type": "json_object"}},
    {"guided_regex": "[a-z ]{3,30}"},
    {"guided_choice": ["yes", "no", "maybe so"]},
]

_PARAMETERS: dict[str, Any] = {
    "temperature": lambda random: random.choice([0, 0.3, 1, 2]),
    "top_p": lambda random: random.uniform(0.1, 1),
    "top_k": lambda random: random.randint(-1, 50),
    "min_p": lambda random: random.uniform(0, 0.3),
    "n": lambda random: random.randint(1, 3),
    "presence_penalty": lambda random: random.uniform(-2, 2),
    "frequency_penalty": lambda random: random.uniform(-2, 2),
    "repetition_penalty": lambda random: random.uniform(0.8, 1.5),
    "logit_bias": lambda random: {str(random.randint(3, 40_000)): random.uniform(-100, 10)},
    "stop": lambda random: random.choice([" ", ["e", "."], ["the", "\n", "a b"]]),
    "stop_token_ids": lambda random: [28, 30],
    "min_tokens": lambda random: random.randint(0, 5),
    "ignore_eos": lambda random: True,
    "skip_special_tokens": lambda random: False,
    "include_stop_str_in_output": lambda random: True,
    "priority": lambda random: random.randint(-100, 100),
    "cache_salt": lambda random: random.choice(["a", "b"]),
    "num_speculative_tokens": lambda random: random.randint(0, 4),
}

# What makes a valid body invalid, by the field that the refusal names.
INVALID_CHATS: dict[str, Body] = {
    "temperature": {"temperature": 2.5},
    "top_p": {"top_p": 0},
    "n": {"n": 0},
    "max_tokens": {"max_tokens": -1},
    "min_tokens": {"min_tokens": 10, "max_tokens": 3},
    "stop": {"stop": ["x"] * 17},
    "stop[1]": {"stop": ["x", ""]},
    "logit_bias": {"logit_bias": {"5": 101}},
    "top_logprobs": {"top_logprobs": 3},
    "messages": {"messages": []},
    "messages[0].role": {"messages": [{"content": "hi"}]},
    "messages[0].content[0].type": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "response_format.type": {"response_format": {"type": "xml"}},
    "guided_json": {"guided_json": {"type": "array", "uniqueItems": True}},
    "guided_regex": {"guided_regex": "("},
    "tools[0].function.name": {"tools": [{"type": "function", "function": {"name": "no spaces"}}]},
    "tool_choice": {"tool_choice": "required"},
    "seed": {"seed": 2**63},
    "best_of": {"best_of": 2},
    "cache_salt": {"cache_salt": "x" * 257},
}
