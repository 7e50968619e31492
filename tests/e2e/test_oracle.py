"""The running system says what transformers' own generate says: same weights, greedy, float32."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.e2e.client import Client, user
from tests.support.stack import Stack

MAX_TOKENS = 32

CHATS: list[list[dict[str, str]]] = [
    user("What is the capital of France?"),
    user("用中文介绍一下北京的历史。"),
    user("请把“早上好”翻译成英文。"),
    user("Tell me a joke with emoji 😀🎉👩‍👩‍👧‍👦"),
    user("What does 🚀 mean?"),
    user("Write a Python function that returns the n-th Fibonacci number."),
    user('```c\nfor (int i = 0; i < 10; i++) printf("%d\\n", i);\n```\nWhat does this print?'),
    [{"role": "system", "content": ""}, *user("Say hello.")],
    [{"role": "system", "content": "You are a pirate."}, *user("Who are you?")],
    [
        *user("My name is Ada."),
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        *user("What is my name?"),
    ],
    [
        {"role": "system", "content": "Answer in one word."},
        *user("Colour of the sky?"),
        {"role": "assistant", "content": "Blue."},
        *user("Colour of grass?"),
        {"role": "assistant", "content": "Green."},
        *user("Colour of snow?"),
    ],
    user("1234567890 + 987654321 = ?"),
    user("   leading and trailing spaces   "),
    user("line one\n\n\tline two\r\nline three"),
    user("Расскажи о Москве."),
    user("日本の首都はどこですか？"),
    user("مرحبا، كيف حالك؟"),
    user("What is the meaning of <|im_start|> in a prompt?"),
    user("x" * 300),
    user("List the planets of the solar system in order."),
]


@pytest.fixture(scope="module")
def oracle(reference_model: tuple[Any, Any]) -> list[str]:
    """Greedy answers of transformers' own model, tokenizer and template to CHATS."""
    return [_greedy(*reference_model, chat) for chat in CHATS]


def _greedy(model: Any, tokenizer: Any, chat: list[dict[str, str]]) -> str:
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=MAX_TOKENS, do_sample=False)
    text: str = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


async def test_twenty_chats_equal_transformers_streamed_and_whole(real_stack: Stack, oracle: list[str]) -> None:
    async with Client(real_stack) as client:
        bodies = [{"messages": chat, "temperature": 0, "max_tokens": MAX_TOKENS} for chat in CHATS]
        wholes = await asyncio.gather(*(client.whole(**body) for body in bodies))
        streams = await asyncio.gather(*(client.stream(**body) for body in bodies))
        for chat, expected, whole, streamed in zip(CHATS, oracle, wholes, streams, strict=True):
            choice = whole["choices"][0]
            assert choice["message"]["content"] == expected, chat
            assert streamed.text == expected, chat
            assert streamed.done
            assert streamed.finish_reason == choice["finish_reason"]
            assert streamed.usage is not None
            assert streamed.usage["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_32_concurrent_streams_each_equal_their_lone_run(real_stack: Stack) -> None:
    prompts = [f"{chat[-1]['content']} ({number})" for number in (1, 2) for chat in CHATS][:32]
    bodies = [{"messages": user(text), "temperature": 0, "max_tokens": 16} for text in prompts]
    async with Client(real_stack) as client:
        alone = [(await client.stream(**body)).text for body in bodies]
        together = await asyncio.gather(*(client.stream(**body) for body in bodies))
        assert [one.text for one in together] == alone
        assert all(one.done for one in together)


async def test_fieldbug_11_prompt_tokens_equal_what_tokenize_counts(real_stack: Stack) -> None:
    async with Client(real_stack) as client:
        for chat in CHATS:
            counted = (await client.post("/tokenize", messages=chat)).json()
            usage = (await client.whole(messages=chat, max_tokens=1, temperature=0))["usage"]
            assert usage["prompt_tokens"] == counted["count"] == len(counted["tokens"]), json.dumps(chat)
