"""Clients that ask without a pause and try again when a connection fails, as clients do."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence

import httpx

from tests.e2e.client import until, user

TRIES = 20
BODY = {"messages": user("hello"), "max_tokens": 4, "ignore_eos": True}


class Load:
    """Half of the clients stream. `urls` are of gateways, which all clients use in turn."""

    def __init__(self, urls: Sequence[str], clients: int = 4) -> None:
        self._urls = itertools.cycle(urls)
        self._clients = clients
        self.answered = 0
        self.lost: list[str] = []

    async def __aenter__(self) -> Load:
        self._http = httpx.AsyncClient(timeout=60)
        self._tasks = [asyncio.create_task(self._ask_on(stream=i % 2 == 1)) for i in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def wait_for_more(self, count: int = 8) -> None:
        """Waits until `count` more requests are answered."""
        goal = self.answered + count

        async def reached() -> bool:
            return self.answered >= goal

        await until(reached, 60, lambda: f"no more answers; lost: {self.lost[:3]}")

    async def _ask_on(self, stream: bool) -> None:
        while True:
            await self._ask(stream)

    async def _ask(self, stream: bool) -> None:
        for _ in range(TRIES):
            url = f"{next(self._urls)}/v1/chat/completions"
            try:
                response = await self._http.post(url, json=BODY | {"stream": stream})
            except httpx.TransportError:
                await asyncio.sleep(0.1)  # a client's own back-off, not a wait for anything here
                continue
            if response.status_code == 503 and "retry-after" in response.headers:
                continue  # that gateway is about to stop: the next one
            if response.status_code == 200 and is_whole(response.text, stream):
                self.answered += 1
            else:
                self.lost.append(response.text)
            return
        self.lost.append("no connection")


def is_whole(text: str, stream: bool) -> bool:
    """Whether an answer came to its end, without an error."""
    if not stream:
        return bool(json.loads(text)["choices"][0]["finish_reason"] == "length")
    return text.endswith("data: [DONE]\n\n") and '"error"' not in text
