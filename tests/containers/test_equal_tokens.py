"""Two and four ranks, a container each, give the greedy tokens of one engine: the default model, whose 9 heads and 3 KV
heads do not divide, in float32, under a load that chunks prompts, preempts and shares prefixes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.containers.compose import Compose
from tests.docs.pages import ROOT
from tests.e2e.client import Client, user
from tests.e2e.streams import STREAMS

pytestmark = pytest.mark.containers
TOKENS = 24
SECOND = "engine-rank-1"
SETTINGS = {
    "POSTROAD_ENGINE_EXECUTOR": "torch",
    "POSTROAD_ENGINE_DTYPE": "float32",
    "POSTROAD_ENGINE_MAX_MODEL_LEN": "1024",
    "POSTROAD_ENGINE_MAX_NUM_SEQS": str(STREAMS),
    "POSTROAD_ENGINE_MAX_BATCH_TOKENS": "64",  # less than a prompt has
    "POSTROAD_ENGINE_MAX_MIXED_PROMPT_TOKENS": "64",
    "POSTROAD_ENGINE_PAGE_SIZE": "4",
    "POSTROAD_ENGINE_NUM_PAGES": "256",  # less than all streams need
}


class Engines:
    """The project with an engine of so many ranks."""

    def __init__(self, project: Compose, folder: Path) -> None:
        self._project = project
        self._folder = folder

    def of(self, size: int) -> Compose:
        names = ["engine", *(f"engine-rank-{rank}" for rank in range(1, size))]
        override = self._folder / f"{size}.yml"
        override.write_text(yaml.safe_dump({"services": {name: self._service(name, size) for name in names}}))
        return self._project.with_settings(COMPOSE_PROFILES="tp2" if size > 1 else "").with_overrides(override)

    def _service(self, name: str, size: int) -> dict[str, object]:
        """What is changed in docker-compose.yml, or added: ranks beyond the second are as that one."""
        settings = {**SETTINGS, "POSTROAD_ENGINE_TENSOR_PARALLEL_SIZE": str(size)}
        if name in ("engine", SECOND):
            return {"environment": settings}
        as_the_second = {"file": str(ROOT / "docker-compose.yml"), "service": SECOND}
        return {"extends": as_the_second, "environment": {**settings, "POSTROAD_ENGINE_RANK": name.rpartition("-")[2]}}


@pytest.fixture
def engines(project: Compose, tmp_path: Path) -> Iterator[Engines]:
    yield Engines(project, tmp_path)
    project.run("up", "--detach", "--remove-orphans", "--wait", timeout=300)


async def answers(road: Compose) -> list[str]:
    road_of = "the old post road, with its innkeepers, its horses and its weather, in plain words and at some length"
    prompts = [  # every fourth begins as no other does
        f"{f'Traveller {i} asks you. ' if i % 4 == 0 else ''}You are a guide who knows every station on {road_of}, and "
        f"who tells whoever comes by of each of them. Tell of station {i % 29}."
        for i in range(STREAMS)
    ]
    body = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    async with Client(road) as client:
        results = await asyncio.gather(*(client.stream(messages=user(prompt), **body) for prompt in prompts))
        assert all(result.done and result.usage and result.usage["completion_tokens"] == TOKENS for result in results)
        assert all(result.usage["prompt_tokens"] > 64 for result in results if result.usage)
        counters = (await client.engine_read_out()).counters
        assert counters["preemptions"] > 0
        assert counters["prefix_hit_tokens"] > 0
        await client.wait_idle()
    return [result.text for result in results]


async def test_two_and_four_ranks_give_the_tokens_of_one(engines: Engines) -> None:
    expected: list[str] = []
    for size in (1, 2, 4):
        road = engines.of(size)
        await asyncio.to_thread(road.up)
        given = await answers(road)
        assert given == (expected or given), f"{size} ranks"
        expected = given
    assert len(set(expected)) > 1
