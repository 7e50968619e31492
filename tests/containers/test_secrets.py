"""Secrets come by file, and settings by variable: what the containers see of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.containers.compose import Compose, docker
from tests.docs.pages import ROOT
from tests.e2e.client import user

pytestmark = pytest.mark.containers
KEY, TOKEN = "sk-0123456789abcdef", "hf_0123456789abcdef"


@pytest.fixture
def secretive(project: Compose, tmp_path: Path) -> Iterator[Compose]:
    keys, token = tmp_path / "keys.toml", tmp_path / "token"
    keys.write_text(f'[keys.one]\nkey = "{KEY}"\n')
    token.write_text(TOKEN)
    compose = project.with_settings(POSTROAD_API_KEYS_FILE=str(keys), POSTROAD_HF_TOKEN_FILE=str(token))
    compose.up()
    yield compose
    project.up()


def test_keys_and_tokens_are_read_from_files_and_stand_in_no_variable(secretive: Compose) -> None:
    body = {"messages": user("hello"), "max_tokens": 1}
    with httpx.Client(base_url=secretive.url, timeout=60) as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 401
        with_key = {"authorization": f"Bearer {KEY}"}
        assert http.post("/v1/chat/completions", json=body, headers=with_key).status_code == 200
    read = "import os, pathlib; print(pathlib.Path(os.environ['HF_TOKEN_PATH']).read_text())"
    engine = secretive.container("engine").id
    assert docker("exec", engine, "python", "-c", read).strip() == TOKEN
    for service in ("gateway", "tokenizer", "detokenizer", "engine"):
        found = json.dumps(json.loads(docker("inspect", secretive.container(service).id))[0]["Config"])
        assert KEY not in found
        assert TOKEN not in found


def test_every_profile_and_the_override_for_gpus_are_read_by_compose(project: Compose) -> None:
    every = project.run("--profile=*", "config", "--services").split()
    observability = {"prometheus", "grafana", "otel-collector"}
    assert set(every) == {"gateway", "tokenizer", "detokenizer", "engine", "engine-rank-1", *observability}
    on_gpu = project.with_overrides(ROOT / "docker-compose.gpu.yml")
    merged = json.loads(on_gpu.run("config", "--format=json"))["services"]["engine"]
    assert merged["build"]["dockerfile"] == "Dockerfile.gpu"
    [device] = merged["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
