"""The chat's client against a server whose every byte the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.chat.client import ChatClient, ChatError, Sampling
from tests.chat.fake_gateway import DONE, NO_MODELS, SSE_HEAD, Answer, event, fake_gateway, response
from tests.support.ports import free_ports

HELLO = [{"role": "user", "content": "Hello"}]


def replies(*parts: bytes) -> Answer:
    async def answer(_: dict[str, Any]) -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return answer


async def deltas(answer: Answer) -> list[str]:
    async with fake_gateway(answer) as gateway, ChatClient(gateway.url) as client:
        return [text async for text in client.stream("tiny", HELLO)]


async def error_of(answer: Answer) -> str:
    with pytest.raises(ChatError) as caught:
        await deltas(answer)
    return str(caught.value)


async def test_streams_the_deltas() -> None:
    assert await deltas(replies(SSE_HEAD, event("Good "), event("day"), DONE)) == ["Good ", "day"]


async def test_sends_model_messages_and_sampling() -> None:
    async with (
        fake_gateway(replies(SSE_HEAD, DONE)) as gateway,
        ChatClient(gateway.url, Sampling(0.0, 7, 1.2)) as client,
    ):
        assert await client.model() == "tiny"
        assert [text async for text in client.stream("tiny", HELLO)] == []
        assert gateway.bodies == [
            {
                "model": "tiny",
                "messages": HELLO,
                "stream": True,
                "temperature": 0.0,
                "max_tokens": 7,
                "repetition_penalty": 1.2,
            }
        ]


async def test_a_gateway_without_a_model_says_so() -> None:
    async with fake_gateway(replies(SSE_HEAD, DONE), NO_MODELS) as gateway, ChatClient(gateway.url) as client:
        with pytest.raises(ChatError, match="serves no model yet"):
            await client.model()


async def test_line_separators_inside_the_text_do_not_split_an_event() -> None:
    text = "a\u2028b\u0085c\x1cd"
    assert await deltas(replies(SSE_HEAD, event(text), DONE)) == [text]


async def test_events_may_arrive_in_any_pieces() -> None:
    whole = event("日本 🙂") + event("語") + DONE
    for cut in range(len(whole)):
        assert await deltas(replies(SSE_HEAD, whole[:cut], whole[cut:])) == ["日本 🙂", "語"]


async def test_chunks_without_text_and_comments_are_passed_over() -> None:
    usage = b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n'
    role = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}\r\n\r\n'
    assert await deltas(replies(SSE_HEAD, b": ping\n\n", role, event("x"), usage, DONE)) == ["x"]


async def test_a_key_that_is_missing_is_told_with_where_it_belongs() -> None:
    body = b'{"error": {"message": "an API key is needed"}}'
    assert await error_of(replies(response(401, body))) == (
        "an API key is needed (HTTP 401); put it into OPENAI_API_KEY"
    )


async def test_an_error_body_is_told_by_its_message() -> None:
    body = b'{"error": {"message": "too long: 9000 of 2048 tokens", "code": "context_length_exceeded"}}'
    assert await error_of(replies(response(400, body))) == "too long: 9000 of 2048 tokens (HTTP 400)"


async def test_an_error_without_our_form_is_told_as_it_is() -> None:
    assert await error_of(replies(response(502, b"<html>bad gateway</html>"))) == "HTTP 502: <html>bad gateway</html>"


async def test_an_error_in_mid_stream_is_told() -> None:
    parts = (SSE_HEAD, event("Half"), b'data: {"error": {"message": "the engine failed"}}\n\n')
    assert await error_of(replies(*parts)) == "the engine failed"


async def test_a_stream_that_breaks_off_is_an_error() -> None:
    assert await error_of(replies(SSE_HEAD, event("Half"))) == "the answer ended early"


async def test_a_chunk_that_is_no_chunk_is_an_error() -> None:
    assert "no chat chunk" in await error_of(replies(SSE_HEAD, b"data: nonsense\n\n"))


async def test_no_gateway_is_told_with_what_to_do() -> None:
    async with ChatClient(f"http://127.0.0.1:{free_ports(1)[0]}") as client:
        with pytest.raises(ChatError, match=r"no gateway at .*`make serve`"):
            await client.model()


async def test_an_address_without_a_scheme_is_http_s() -> None:
    async with (
        fake_gateway(replies(SSE_HEAD, DONE)) as gateway,
        ChatClient(gateway.url.removeprefix("http://")) as client,
    ):
        assert await client.model() == "tiny"


async def test_closing_the_stream_hangs_up() -> None:
    async def endless(_: dict[str, Any]) -> AsyncIterator[bytes]:
        yield SSE_HEAD + event("first")
        await asyncio.Event().wait()

    async with fake_gateway(endless) as gateway, ChatClient(gateway.url) as client:
        stream = client.stream("tiny", HELLO)
        assert await anext(stream) == "first"
        await stream.aclose()
        await asyncio.wait_for(gateway.hung_up.wait(), 10)
