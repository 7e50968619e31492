"""A small streaming client over raw sockets, so that the load generator takes little of the cores it shares."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

LAST_CHUNK = b"0\r\n"


@dataclass(slots=True)
class Answer:
    """What one streamed request brought. Times are seconds of time.perf_counter()."""

    sent: float
    event_times: list[float] = field(default_factory=list)  # events that carry text
    ended: float = 0.0
    completion_tokens: int = 0
    error: str = ""

    @property
    def time_to_first_token(self) -> float:
        """Seconds from sending the request to the first event with text."""
        return self.event_times[0] - self.sent


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
        payload = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        answer = Answer(sent=time.perf_counter())
        self._writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(payload) + payload
        )
        status = await self._reader.readline()
        if b" 200 " not in status:
            answer.error = (await self._reader.read(2000)).decode(errors="replace")
            return answer
        async for line in self._reader:
            if line.startswith(b"data: {"):
                _take(answer, line)
            elif line == LAST_CHUNK:
                await self._reader.readline()
                break
        answer.ended = time.perf_counter()
        return answer


def _take(answer: Answer, line: bytes) -> None:
    if b'"content":"' in line and b'"content":""' not in line:  # the common case needs no parsing
        answer.event_times.append(time.perf_counter())
        return
    event = json.loads(line[6:])
    if event.get("error"):
        answer.error = str(event["error"])
    if event.get("usage"):
        answer.completion_tokens = event["usage"]["completion_tokens"]
