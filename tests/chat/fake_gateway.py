"""An HTTP server on loopback that answers with exactly the bytes a test gives, to see what the chat makes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

Answer = Callable[[dict[str, Any]], AsyncIterator[bytes]]  # from the request's body to the whole response
MODELS = b'{"object": "list", "data": [{"id": "tiny", "object": "model"}]}'
NO_MODELS = b'{"object": "list", "data": []}'


class FakeGateway:
    """What it was asked (`bodies`), and whether a client hung up on an answer (`hung_up`)."""

    def __init__(self, answer: Answer, models: bytes) -> None:
        self._answer = answer
        self._models = models
        self.bodies: list[dict[str, Any]] = []
        self.hung_up = asyncio.Event()
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if head.startswith("get /v1/models"):
            writer.write(response(200, self._models))
        else:
            (length,) = (int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length:"))
            self.bodies.append(json.loads(await reader.readexactly(length)))
            answering = asyncio.create_task(self._write_answer(writer))
            hanging_up = asyncio.create_task(reader.read())
            await asyncio.wait([answering, hanging_up], return_when=asyncio.FIRST_COMPLETED)
            if hanging_up.done():
                self.hung_up.set()
            answering.cancel()
            hanging_up.cancel()
        writer.close()

    async def _write_answer(self, writer: asyncio.StreamWriter) -> None:
        async for part in self._answer(self.bodies[-1]):
            writer.write(part)
            await writer.drain()


def response(status: int, body: bytes, content_type: str = "application/json") -> bytes:
    """A whole response that ends with the connection."""
    return f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\nconnection: close\r\n\r\n".encode() + body


def event(text: str) -> bytes:
    """One SSE event with a content delta, its text unescaped."""
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()


SSE_HEAD = response(200, b"", "text/event-stream")
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def fake_gateway(answer: Answer, models: bytes = MODELS) -> AsyncIterator[FakeGateway]:
    gateway = FakeGateway(answer, models)
    server = await asyncio.start_server(gateway.handle, "127.0.0.1", 0)
    gateway.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield gateway
