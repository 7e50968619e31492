"""A small streaming client over raw sockets, so that the load generator takes little of the cores it shares."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from dataclasses import dataclass, field

LAST_CHUNK = b"0\r\n"
_TEXT = re.compile(rb'"content":"[^"]')
# Most events need no more than a look; what they say is parsed only where it counts.
_HAS_TOKENS = re.compile(rb'"(?:content|text)": ?"')
_IS_EMPTY_TURN = re.compile(rb'"content": ?""')
_HAS_MORE = re.compile(rb'"usage": ?\{|"error"')

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(slots=True)
class Answer:
    """What one streamed request brought. Times are seconds of time.perf_counter()."""

    sent: float
    event_times: list[float] = field(default_factory=list)  # events that carry tokens
    ended: float = 0.0
    completion_tokens: int = 0
    error: str = ""

    @property
    def time_to_first_token(self) -> float:
        """Seconds from sending the request to the first event with tokens."""
        return self.event_times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between one event and the next."""
        return [b - a for a, b in zip(self.event_times, self.event_times[1:], strict=False)]


class Connection:
    """One HTTP connection, kept alive between requests as clients do. Use as an async context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(*self._address, limit=1 << 20)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def stream_chat(self, body: dict[str, object]) -> Answer:
        """Sends one streaming chat request and reads its answer to the end."""
        return await self._stream(CHAT, body)

    async def stream_completion(self, body: dict[str, object]) -> Answer:
        """Sends one streaming request for plain completion and reads its answer to the end."""
        return await self._stream(COMPLETIONS, body)

    async def _stream(self, path: str, body: dict[str, object]) -> Answer:
        answer = Answer(sent=time.perf_counter())
        self._writer.write(_http_request(path, body))
        status = await self._reader.readline()
        if b" 200 " not in status:
            rest = (status + await self._reader.read(2000)).decode(errors="replace")
            answer.error = rest or "the server closed the connection"
            return answer
        async for line in self._reader:
            if line.startswith(b"data: {"):
                _take(answer, line)
            elif line == LAST_CHUNK:
                await self._reader.readline()
                break
        answer.ended = time.perf_counter()
        return answer


def time_to_first_token(connection: socket.socket, body: dict[str, object]) -> float:
    """Seconds from sending one streaming chat request to the first text; reads its answer to the end.

    On a blocking socket, so that no event loop of the client's is in what it measures.
    """
    request = _http_request(CHAT, body)
    sent = time.perf_counter()
    connection.sendall(request)
    data = b""
    while not _TEXT.search(data):
        data += _receive(connection)
    first = time.perf_counter()
    while not data.endswith(b"\r\n" + LAST_CHUNK + b"\r\n"):
        data += _receive(connection)
    return first - sent


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionError("the gateway closed the connection")
    return data


def _http_request(path: str, body: dict[str, object]) -> bytes:
    payload = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(payload) + payload


def _take(answer: Answer, line: bytes) -> None:
    if _HAS_TOKENS.search(line) and not _IS_EMPTY_TURN.search(line):
        answer.event_times.append(time.perf_counter())
    if _HAS_MORE.search(line):
        event = json.loads(line[6:])
        if event.get("error"):
            answer.error = str(event["error"])
        if event.get("usage"):
            answer.completion_tokens = event["usage"]["completion_tokens"]
