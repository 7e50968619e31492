"""LiteLLM: a chat, whole and streamed, a tool call, a text completion, and errors."""

import asyncio
import json
import sys

import litellm

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}

url = f"{sys.argv[1]}/v1"
greedy = {"api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 12, "num_retries": 0}
chat = greedy | {"model": "openai/default", "messages": MESSAGES}


async def streamed() -> str:
    stream = await litellm.acompletion(**chat, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def error(**change: object) -> str:
    try:
        litellm.completion(**(chat | change))
    except Exception as raised:
        return type(raised).__name__
    return "none"


whole = litellm.completion(**chat)
chunks = list(litellm.completion(**chat, stream=True, stream_options={"include_usage": True}))
call = litellm.completion(**(chat | {"max_tokens": 60}), tools=[TOOL], tool_choice="required").choices[0]
text = litellm.text_completion(**greedy, model="text-completion-openai/default", prompt="1, 2, 3,")
said = {
    "whole": whole.choices[0].message.content,
    "usage": whole.usage.total_tokens,
    "chunks": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
    "rebuilt": litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message.content,
    "streamed": asyncio.run(streamed()),
    "call": call.message.tool_calls[0].function.name,
    "text": text.choices[0].text,
    "errors": [
        error(model="openai/another"),
        error(temperature=7),
        error(messages=[{"role": "user", "content": "word " * 30_000}]),
    ],
}
print(json.dumps(said))
