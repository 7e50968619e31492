"""What the scripted executor says to requests with tools: texts in Hermes' format, some with thoughts before them."""

from __future__ import annotations

from typing import Any

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "unit": "C"}}\n</tool_call>'
TIME_CALL = '<tool_call>{"arguments": {}, "name": "get_time"}</tool_call>'

# By a word of the prompt; the last one answers all others.
TEXTS = {
    "WITH-THOUGHT": f"<think>\nWhich city?\n</think>\n\nLet me look.\n{CALL}",
    "ONLY-THOUGHT": "<think>\nIt is a long story: 日本 🙂.\n</think>",
    "THOUGHT-AND-TEXT": "<think>\nTwo and two.\n</think>\n\nIt is four. 😀",
    "ENDLESS-THOUGHT": "<think>\nFirst of all, " + "let me think of it once more, " * 20,
    "TEXT-AROUND": f"First this one.\n{TIME_CALL}\nThen that one.\n{CALL}\nDone.",
    "NO-CALL": 'A call is <tool_call> with {"name": 1} in it, and a < b.',
    "sunny": "It is sunny in Köln.",
    "": f"{CALL}\n{CALL.replace('Köln', 'Rom')}",
}

SCRIPT = {"outputs": [{"prompt_contains": word or None, "text": text, "finish": True} for word, text in TEXTS.items()]}
