"""60 requests with seeds, by name: what the real model answers, and what the scripted executor does."""

from __future__ import annotations

from typing import Any

from tests.e2e.client import user
from tests.e2e.tool_texts import TIME, WEATHER

Bodies = dict[str, dict[str, Any]]

STORY = "Once upon a time"
EMOJI = user("Write 日本, then an emoji: 😀🎉👩‍👩‍👧‍👦")
COLOURS = user("Name three colours.")
TURNS = [
    {"role": "system", "content": "You are a pirate."},
    *user("My name is Ada."),
    {"role": "assistant", "content": "Ahoy, Ada!"},
    *user("What is my name?"),
]
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "label": {"type": "string", "maxLength": 8}},
    "required": ["x", "label"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
NAMED_TIME = {"type": "function", "function": {"name": "get_time"}}
NAMED_WEATHER = {"type": "function", "function": {"name": "get_weather"}}


def chat(messages: list[dict[str, str]] = COLOURS, **fields: Any) -> dict[str, Any]:
    return {"messages": messages, "seed": 1, "max_tokens": 12} | fields


def text(prompt: Any = STORY, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "seed": 1, "max_tokens": 12} | fields


def asking(word: str, **fields: Any) -> dict[str, Any]:
    """A chat with tools that the script answers by this word of the prompt."""
    return {"messages": user(word), "seed": 1, "tools": [WEATHER, TIME], "max_tokens": 200} | fields


CHATS: Bodies = {
    "chat, greedy": chat(temperature=0),
    "chat, sampled": chat(temperature=1.3, top_p=0.9),
    "chat, narrowed": chat(top_k=20, min_p=0.05),
    "chat, penalties": chat(presence_penalty=1, frequency_penalty=0.5, repetition_penalty=1.1),
    "chat, bias": chat(logit_bias={"30": 20, "28": -100}),
    "chat, turns": chat(TURNS),
    "chat, characters of several tokens": chat(EMOJI, max_tokens=20),
    "chat, max_completion_tokens": chat(max_completion_tokens=5),
    "chat, to its end": chat(user("Say hello."), temperature=0, max_tokens=40),
    "chat, n": chat(n=3),
    "chat, n with logprobs": chat(n=2, logprobs=True),
    "chat, stop": chat(user("Count to five."), temperature=0, stop=", 3", max_tokens=20),
    "chat, several stops": chat(stop=["\n", "blue", ". "]),
    "chat, stop kept": chat(stop=["e"], include_stop_str_in_output=True),
    "chat, stop at once": chat(temperature=0, stop=list("ABCDEFGHIJKLMNOP"), logprobs=True),
    "chat, stop token": chat(stop_token_ids=[28, 30]),
    "chat, logprobs": chat(logprobs=True),
    "chat, top_logprobs": chat(logprobs=True, top_logprobs=5),
    "chat, logprobs of parts of characters": chat(EMOJI, logprobs=True, top_logprobs=2, max_tokens=20),
    "chat, logprobs up to a stop": chat(user("Count to five."), logprobs=True, stop=[", 3"], max_tokens=20),
    "chat, schema": chat(response_format=SCHEMA, max_tokens=60),
    "chat, any object": chat(response_format={"type": "json_object"}, max_tokens=20),
    "chat, regex": chat(structured_outputs={"regex": "[A-Z][a-z]{3,9}, [a-z]{3,9}"}, n=2, max_tokens=20),
    "chat, choice": chat(guided_choice=["Ålesund", "Bergen"], logprobs=True),
    "chat, grammar": chat(guided_grammar='root ::= "yes" | "no" ", " [a-z]+ "."'),
    "chat, named function": chat(tools=[WEATHER, TIME], tool_choice=NAMED_WEATHER, max_tokens=60),
    "chat, named function cut": chat(tools=[WEATHER, TIME], tool_choice=NAMED_WEATHER, max_tokens=4),
    "chat, required call": chat(tools=[WEATHER, TIME], tool_choice="required", max_tokens=30),
    "chat, one required call": chat(
        tools=[TIME], tool_choice="required", parallel_tool_calls=False, n=2, logprobs=True, max_tokens=20
    ),
}

COMPLETIONS: Bodies = {
    "text, greedy": text(temperature=0),
    "text, sampled": text(temperature=1.5, top_k=50),
    "text, n": text(n=3, max_tokens=6),
    "text, prompts": text([STORY, "The capital of France is", "日本の首都は"]),
    "text, prompts times n": text([STORY, "def f(n):"], n=2, max_tokens=6),
    "text, ids": text([504, 3575, 282]),
    "text, lists of ids": text([[504, 3575, 282], [1, 2, 3, 4]], logprobs=1),
    "text, echo": text(echo=True),
    "text, echo of parts of characters": text("日本 🙂", echo=True, logprobs=2),
    "text, echo of prompts": text([STORY, "a b"], echo=True, logprobs=0, n=2, max_tokens=4),
    "text, echo alone": text(echo=True, logprobs=3, max_tokens=0),
    "text, logprobs": text(logprobs=5),
    "text, logprobs of tokens alone": text(logprobs=0, n=2),
    "text, logprobs up to a stop": text("1, 2, 3,", logprobs=1, stop=["6", "8"], temperature=0, max_tokens=20),
    "text, stop kept": text("1, 2, 3,", stop=["7, "], include_stop_str_in_output=True, temperature=0, max_tokens=24),
    "text, special tokens": text("<|im_start|>", skip_special_tokens=False, echo=True),
    "text, min_tokens": text(stop=[" "], min_tokens=6, ignore_eos=True),
    "text, speculation": text("1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", temperature=0, num_speculative_tokens=4),
    "text, usage as it grows": text(n=2, stream_options={"include_usage": True, "continuous_usage_stats": True}),
}

SCRIPTED: Bodies = {
    "calls": asking("any"),
    "calls with logprobs": asking("any", logprobs=True, top_logprobs=1),
    "calls, n": asking("any", n=2),
    "calls, cut in the arguments": asking("any", max_tokens=25),
    "calls, text around them": asking("TEXT-AROUND"),
    "calls, none after all": asking("NO-CALL"),
    "thought": asking("ONLY-THOUGHT"),
    "thought and text": asking("THOUGHT-AND-TEXT", logprobs=True),
    "thought and text, usage as it grows": asking(
        "THOUGHT-AND-TEXT", stream_options={"include_usage": True, "continuous_usage_stats": True}
    ),
    "thought, text and call": asking("WITH-THOUGHT", n=2),
    "thought, cut": asking("ENDLESS-THOUGHT", max_tokens=20),
    "thought, stopped": asking("ENDLESS-THOUGHT", stop=["it once"]),
}

REAL: Bodies = CHATS | COMPLETIONS
