"""What the end-to-end tests do to a running stack: send requests, read SSE streams, read out every station."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import httpx

from services.pb.postroad.v1 import debug_pb2, debug_pb2_grpc


@dataclass(slots=True)
class Streamed:
    """A streamed answer put together again."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, float] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    status: int = 200
    deltas: list[str] = field(default_factory=list)


class Road(Protocol):
    """Where a running road is reached."""

    @property
    def url(self) -> str:
        """The gateway's base URL, without /v1."""

    def address(self, service: str) -> str:
        """host:port of another service's gRPC port."""


class Client:
    """Requests to one road. Use as an async context manager."""

    def __init__(self, stack: Road) -> None:
        self.stack = stack
        self.http = httpx.AsyncClient(base_url=stack.url, timeout=120, limits=httpx.Limits(max_connections=None))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def answers(self) -> bool:
        """Whether the road answers a chat."""
        try:
            response = await self.post("/v1/chat/completions", messages=user("hello"), max_tokens=3)
        except httpx.TransportError:
            return False
        return response.status_code == 200

    async def whole(self, **body: Any) -> dict[str, Any]:
        """A whole answer; the endpoint follows from `messages` or `prompt`. Fails unless it is a 200."""
        response = await self.post(path_of(body), **body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def text(self, **body: Any) -> str:
        return text_of((await self.whole(**body))["choices"][0])

    async def events(self, **body: Any) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream as they arrive, without [DONE]."""
        async with self.http.stream("POST", path_of(body), json=body | {"stream": True}) as response:
            assert response.status_code == 200, (await response.aread()).decode()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])

    async def stream(self, on_delta: Callable[[Streamed], None] | None = None, **body: Any) -> Streamed:
        """A streamed answer, whatever becomes of it. `on_delta` is called after each event with text."""
        result = Streamed()
        wanted = {"stream": True, "stream_options": {"include_usage": True}}
        async with self.http.stream("POST", path_of(body), json=body | wanted) as response:
            result.status = response.status_code
            if response.status_code != 200:
                result.error = json.loads(await response.aread())["error"]
                return result
            async for line in response.aiter_lines():
                assert not line or line.startswith("data: "), line
                if line == "data: [DONE]":
                    result.done = True
                elif line:
                    _take(result, json.loads(line[6:]))
                    if on_delta and result.deltas:
                        on_delta(result)
        return result

    async def read_outs(self) -> dict[str, dict[str, int]]:
        """The sizes of every per-request map, by station."""
        found = {"gateway": (await self.http.get("/debug/read_out")).json()["requests"]}
        for name in ("tokenizer", "engine", "detokenizer"):
            found[name] = dict((await read_out(self.stack.address(name))).requests)
        return found

    async def engine_read_out(self) -> debug_pb2.ReadOutResponse:
        return await read_out(self.stack.address("engine"))

    async def wait_idle(self, seconds: float = 30) -> None:
        """Waits until nothing of any request is left in any station, and checks the KV pool's accounts."""

        async def idle() -> bool:
            self.last = await self.read_outs()
            return not any(count for counts in self.last.values() for count in counts.values())

        await until(idle, seconds, lambda: f"not idle: {self.last}")
        kv = (await self.engine_read_out()).kv
        assert kv.free_pages + kv.cached_pages == kv.total_pages, kv
        assert kv.private_pages == 0, kv
        assert kv.cached_pages_in_use == 0, kv


async def read_out(address: str) -> debug_pb2.ReadOutResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        return await debug_pb2_grpc.DebugStub(channel).ReadOut(debug_pb2.ReadOutRequest(), timeout=10)


async def until(condition: Callable[[], Any], seconds: float, message: Callable[[], str]) -> None:
    """Waits for an async condition. Fails with `message` when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, message()
        await asyncio.sleep(0.02)


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def user(text: str) -> list[dict[str, str]]:
    """A chat of one user message."""
    return [{"role": "user", "content": text}]


def _take(result: Streamed, event: dict[str, Any]) -> None:
    result.error = event.get("error", result.error)
    result.usage = event.get("usage") or result.usage
    result.timings = event.get("timings") or result.timings
    for choice in event.get("choices", ()):
        delta = choice["delta"].get("content") if "delta" in choice else choice["text"]
        if delta:
            result.deltas.append(delta)
            result.text += delta
        result.finish_reason = choice["finish_reason"] or result.finish_reason
