"""A small client of an OpenAI-style chat endpoint: streams one answer as text."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx

CONNECT_SECONDS = 5.0
Message = dict[str, str]  # role and content


class ChatError(Exception):
    """The answer did not come, or not whole; the message is for people."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are made. At the API's own defaults small models ramble, and repeat themselves for ever.

    The penalty is slight: it falls on the question's words, too, and from 1.1 on the answers suffer.
    """

    temperature: float = 0.3
    max_tokens: int = 256
    repetition_penalty: float = 1.05


class ChatClient:
    """Talks to the gateway at `url`, without any proxy. An async context manager. `host:port` is http's."""

    def __init__(self, url: str, sampling: Sampling | None = None, api_key: str = "") -> None:
        self._url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._sampling = sampling or Sampling()
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # An answer may be long in coming; whether the gateway is there at all shows at once.
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        self._http = httpx.AsyncClient(base_url=self._url, headers=headers, timeout=timeout, trust_env=False)

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def model(self) -> str:
        """The name of the served model. Raises ChatError."""
        try:
            response = await self._http.get("/v1/models")
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.status_code != httpx.codes.OK:
            raise ChatError(_message_of(response.text, response.status_code))
        try:
            models = response.json()["data"]
            if models == []:
                raise ChatError(f"{self._url} serves no model yet: its engine is still loading, or away")
            return str(models[0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise ChatError(f"{self._url} does not answer like an OpenAI-style server") from error

    async def stream(self, model: str, messages: Sequence[Message]) -> AsyncGenerator[str, None]:
        """Yields the answer's text as it comes. Closing the generator cancels the request. Raises ChatError."""
        body = {"model": model, "messages": list(messages), "stream": True, **asdict(self._sampling)}
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    text = (await response.aread()).decode(errors="replace")
                    raise ChatError(_message_of(text, response.status_code))
                async for data in _sse_data(response):
                    if data == "[DONE]":
                        return
                    if text := _text_of(data):
                        yield text
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except httpx.TransportError as error:
            raise ChatError(f"the connection broke: {error or type(error).__name__}") from error
        raise ChatError("the answer ended early")

    def _unreachable(self, error: httpx.TransportError) -> ChatError:
        return ChatError(f"no gateway at {self._url} ({error or type(error).__name__}); start one with `make serve`")


async def _sse_data(response: httpx.Response) -> AsyncGenerator[str, None]:
    # Not response.aiter_lines(): it also splits at U+2028 and the like, which may stand unescaped inside the JSON.
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip().decode(errors="replace")


def _text_of(data: str) -> str:
    try:
        event: Any = json.loads(data)
        if error := event.get("error"):
            raise ChatError(str(error.get("message", error) if isinstance(error, dict) else error))
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        raise ChatError(f"the server sent something that is no chat chunk: {data[:200]}") from problem


def _message_of(body: str, status: int) -> str:
    """The message of an error in OpenAI's form; what the server said otherwise."""
    try:
        message = f"{json.loads(body)['error']['message']} (HTTP {status})"
    except (ValueError, LookupError, TypeError):
        return f"HTTP {status}: {body.strip()[:200]}"
    return f"{message}; put it into OPENAI_API_KEY" if status == httpx.codes.UNAUTHORIZED else message
