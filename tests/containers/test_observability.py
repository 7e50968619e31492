"""The profile `observability`: Prometheus finds every container, and every panel of the dashboard has data.

Where no registry is reached, Debian's Prometheus stands in for the maker's image, in a container of the same name.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from tests.containers.compose import Compose, docker
from tests.containers.load import Load
from tests.docs.pages import ROOT
from tests.e2e.client import until
from tests.support.ports import free_ports

pytestmark = pytest.mark.containers
FOLDER = ROOT / "deploy" / "observability"
STAND_IN = """\
FROM python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends prometheus >/dev/null \\
    && install -d -o nobody -g nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
"""


@pytest.fixture(scope="module")
def prometheus(two_ranks: Compose, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL, beside an engine of two ranks."""
    image = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["image"]
    if os.environ.get("BASE_IS_STANDIN") == "1":
        folder = tmp_path_factory.mktemp("prometheus")
        (folder / "Dockerfile").write_text(STAND_IN)
        docker("build", "--quiet", f"--tag={image}", str(folder), timeout=300)
    (port,) = free_ports(1)
    compose = two_ranks.with_settings(POSTROAD_PROMETHEUS_PUBLISH=f"127.0.0.1:{port}")
    compose.run("up", "--detach", "--wait", "prometheus", timeout=300)
    yield f"http://127.0.0.1:{port}"
    compose.run("rm", "--stop", "--force", "prometheus")


def queries() -> dict[str, list[str]]:
    """What each panel asks, by its title."""
    dashboard = json.loads((FOLDER / "grafana" / "dashboards" / "postroad.json").read_text())
    return {panel["title"]: [target["expr"] for target in panel.get("targets", ())] for panel in dashboard["panels"]}


async def ask(http: httpx.AsyncClient, path: str, **params: str) -> Any:
    answer = (await http.get(f"/api/v1/{path}", params=params)).json()
    assert answer["status"] == "success", answer
    return answer["data"]


async def test_every_container_is_scraped_and_every_panel_has_data(two_ranks: Compose, prometheus: str) -> None:
    container = two_ranks.run("ps", "--quiet", "prometheus").strip()
    docker("exec", container, "promtool", "check", "config", "/etc/prometheus/prometheus.yml")
    async with Load([two_ranks.url]), httpx.AsyncClient(base_url=prometheus) as http:

        async def all_are_up() -> bool:
            targets = (await ask(http, "targets"))["activeTargets"]
            up = {target["labels"]["job"] for target in targets if target["health"] == "up"}
            return up == {"gateway", "tokenizer", "detokenizer", "engine", "engine-rank-1"} and len(targets) == len(up)

        async def empty() -> list[str]:
            asked = [(title, query) for title, panel in queries().items() for query in panel]
            answers = await asyncio.gather(*(ask(http, "query", query=query) for _, query in asked))
            return [
                f"{title}: {query}" for (title, query), data in zip(asked, answers, strict=True) if not data["result"]
            ]

        async def none_is_empty() -> bool:
            return not await empty()

        await until(all_are_up, 30, lambda: "not every container is scraped")
        left: list[str] = []
        try:
            await until(none_is_empty, 60, lambda: "a panel has nothing to show")
        except AssertionError:
            left = await empty()
        assert not left
