"""The road in containers, from outside: through the published port of the gateway."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from tests.containers.compose import METRICS_PORTS, Compose
from tests.e2e.client import Client, until, user

pytestmark = pytest.mark.containers
CAPITAL = "What is the capital of France?"


async def test_a_chat_whole_and_streamed(road: Compose) -> None:
    async with Client(road) as client:
        whole = await client.text(messages=user(CAPITAL), temperature=0)
        streamed = await client.stream(messages=user(CAPITAL), temperature=0)
        assert "Paris" in whole
        assert streamed.text == whole
        assert streamed.done
        assert streamed.finish_reason == "stop"


async def test_a_client_that_leaves_frees_everything(road: Compose) -> None:
    async with Client(road) as client:
        events = client.events(messages=user("Count to a million."), max_tokens=4000, ignore_eos=True)
        async for event in events:
            if event["choices"][0]["delta"].get("content"):
                break
        await events.aclose()  # type: ignore[attr-defined]
        await client.wait_idle()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": user("x"), "max_tokens": -1}, "max_tokens"),
        ({"messages": user("x"), "stop": [""]}, "stop[0]"),
        ({"messages": user("x"), "temperature": "hot"}, "temperature"),
    ],
)
async def test_bad_input_is_a_400_that_names_the_field(road: Compose, body: dict[str, object], param: str) -> None:
    async with Client(road) as client:
        response = await client.post("/v1/chat/completions", **body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert (await client.post("/v1/chat/completions", messages=user("x"), max_tokens=1)).status_code == 200


async def test_the_openai_client(road: Compose) -> None:
    async with openai.AsyncOpenAI(base_url=f"{road.url}/v1", api_key="none", max_retries=0) as client:
        (model,) = [model.id async for model in client.models.list()]
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": CAPITAL}], temperature=0, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert "Paris" in text
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model=model, prompt=[10**9])
        assert "prompt" in str(caught.value)


async def test_many_streams_at_once(road: Compose) -> None:
    async with Client(road) as client:
        bodies = [{"messages": user(f"Name {i + 2} animals."), "temperature": 0, "max_tokens": 24} for i in range(16)]
        streams = await asyncio.gather(*(client.stream(**body) for body in bodies))
        assert all(stream.done for stream in streams)
        assert streams[3].text == await client.text(**bodies[3])
        await client.wait_idle()


async def test_only_the_gateway_is_published(road: Compose) -> None:
    assert [bool(road.container(name).published) for name in ("gateway", "engine", "tokenizer", "detokenizer")] == [
        True,
        False,
        False,
        False,
    ]


async def test_metrics_of_each_station(road: Compose) -> None:
    async with httpx.AsyncClient() as http:
        for service, port in METRICS_PORTS.items():
            page = await http.get(f"http://{road.container(service).address}:{port}/metrics")
            assert "postroad_" in page.text, service


async def test_ready_follows_health(road: Compose) -> None:
    async with httpx.AsyncClient(base_url=road.url) as http:

        async def ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await until(ready, 10, lambda: "healthy but not ready")
