from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from services.gateway.api_keys import MAX_KEYS, ApiKey, KeyEntry, read_keys
from services.gateway.settings import GatewaySettings
from services.pb.postroad.v1 import detokenizer_pb2
from tests.gateway.support.running import RunningGateway, running_gateway, until
from tests.gateway.support.stations import first

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789"
KEYS = f"""
[keys.alice]
key = "{ALICE}"
[keys.bob]
sha256 = "{hashlib.sha256(BOB.encode()).hexdigest()}"
"""


@asynccontextmanager
async def guarded_gateway(
    folder: Path, text: str = KEYS, **settings: Any
) -> AsyncIterator[tuple[RunningGateway, Path]]:
    path = folder / "keys.toml"
    path.write_text(text)
    async with running_gateway(api_keys_file=path, **settings) as gateway:
        yield gateway, path


def replace(path: Path, text: str) -> None:
    """In one step, as editors and secret mounts do it."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.rename(path)


def limited(**limits: int) -> str:
    """A file with Alice's key alone."""
    return "\n".join([f'[keys.alice]\nkey = "{ALICE}"', *(f"{name} = {value}" for name, value in limits.items())])


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def status(gateway: RunningGateway, headers: dict[str, str]) -> int:
    body = {"prompt": "x"}
    return (await gateway.http.post("/v1/completions", json=body, headers=headers)).status_code


async def test_who_has_no_known_key_gets_401_in_openais_form(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, _):
        others: list[Any] = [{}, bearer("sk-nobody-0123456789"), {"authorization": ALICE}]
        for headers in [*others, [(b"authorization", "Bearer é".encode())]]:
            for path in ("/v1/chat/completions", "/v1/models", "/tokenize", "/detokenize", "/nowhere"):
                answer = await gateway.http.post(path, json={}, headers=headers)
                assert answer.status_code == 401
                error = answer.json()["error"]
                assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.headers["x-request-id"]
        assert not gateway.stations.tokenizer.requests


async def test_keys_are_taken_from_both_headers_in_clear_and_as_a_hash(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, _):
        for headers in (bearer(ALICE), {"authorization": f"bearer {BOB}"}, {"x-api-key": BOB}):
            assert await status(gateway, headers) == 200
        await gateway.assert_idle()


async def test_what_orchestrators_look_at_needs_no_key(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, _):
        for path in ("/", "/health", "/ready", "/version", "/metrics", "/debug/read_out"):
            assert (await gateway.http.get(path)).status_code == 200


async def test_openais_client_raises_its_own_error(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, _):
        url = f"http://127.0.0.1:{gateway.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=ALICE, max_retries=0) as client:
            assert (await client.models.list()).data
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-nobody-0123456789", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()


async def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, path):
        assert await status(gateway, bearer(ALICE)) == 200
        replace(path, '[keys.carol]\nkey = "sk-carol-0123456789"\n')
        assert await status(gateway, bearer(ALICE)) == 401
        assert await status(gateway, bearer("sk-carol-0123456789")) == 200


@pytest.mark.parametrize("broken", ["[keys.x", "", None])
async def test_a_file_that_becomes_unusable_changes_nothing(tmp_path: Path, broken: str | None) -> None:
    async with guarded_gateway(tmp_path) as (gateway, path):
        assert await status(gateway, bearer(ALICE)) == 200
        if broken is None:
            path.unlink()
        else:
            replace(path, broken)
        for _ in range(3):
            assert await status(gateway, bearer(ALICE)) == 200
        assert [line["event"] for line in gateway.lines if line["log_level"] == "error"] == ["API keys not read"]
        replace(path, KEYS)
        assert await status(gateway, bearer(BOB)) == 200


async def test_requests_at_a_time_are_bounded(tmp_path: Path) -> None:
    async def endless(request: Any, context: Any) -> AsyncIterator[detokenizer_pb2.TextDelta]:
        yield first("x")
        await asyncio.Event().wait()

    async with guarded_gateway(tmp_path, limited(max_concurrent_requests=1)) as (gateway, _):
        gateway.stations.detokenizer.script = endless
        body = {"prompt": "x", "stream": True}
        running = asyncio.create_task(gateway.http.post("/v1/completions", json=body, headers=bearer(ALICE)))
        await gateway.stations.detokenizer.entered.wait()
        refused = await gateway.http.post("/v1/completions", json=body, headers=bearer(ALICE))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        running.cancel()
        await gateway.assert_idle()
        assert (await gateway.http.get("/v1/models", headers=bearer(ALICE))).status_code == 200


async def test_requests_per_minute_are_bounded_and_a_changed_file_does_not_forget_them(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path, limited(requests_per_minute=3)) as (gateway, path):
        assert [await status(gateway, bearer(ALICE)) for _ in range(4)] == [200, 200, 200, 429]
        replace(path, limited(requests_per_minute=2))
        refused = await gateway.http.post("/tokenize", json={"prompt": "x"}, headers=bearer(ALICE))
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 30


def test_salts_keep_keys_apart() -> None:
    alice = ApiKey("alice", KeyEntry(key=ALICE))
    bob = ApiKey("bob", KeyEntry(key=BOB))
    friend = ApiKey("friend", KeyEntry(key=BOB, cache_salt="alice"))
    assert alice.cache_salt("x") == friend.cache_salt("x") != alice.cache_salt(None)
    assert alice.cache_salt(None) == alice.cache_salt("")
    given = {key.cache_salt(salt) for key in (alice, bob) for salt in (None, "alice", "bob", "x")}
    assert len(given) == 8


async def test_the_salt_reaches_the_engine_and_the_name_the_log_and_the_metrics(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path) as (gateway, _):
        for key in (ALICE, BOB):
            await status(gateway, bearer(key))
        salts = {request.request.cache_salt for request in gateway.stations.detokenizer.requests}
        assert len(salts) == 2
        assert all(len(salt) == 64 for salt in salts)
        await until(lambda: len(gateway.request_lines()) == 2)
        assert [line["api_key"] for line in gateway.request_lines()] == ["alice", "bob"]
        metrics = (await gateway.http.get("/metrics")).text
        assert 'postroad_api_key_requests_total{key="alice",status="200"} 1.0' in metrics
        assert 'postroad_api_key_tokens_total{key="bob",kind="prompt"} 5.0' in metrics
        assert ALICE not in metrics
        assert ALICE not in str(gateway.lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[keys.a]", "one of key and sha256"),
        (f'[keys.a]\nkey = "{ALICE}"\nsha256 = "{"0" * 64}"', "one of key and sha256"),
        (f'[keys.a]\nkey = "{ALICE}"\n[keys.b]\nkey = "short"', r"keys\.b: .*length.*\.key"),
        ('[keys.a]\nsha256 = "xyz"', r"keys\.a: .*sha256"),
        ("[keys]\na = 3", r"keys\.a: "),
        (f'[keys.a]\nkey = "{ALICE}"\nlimit = 3', "limit"),
        (f'[keys.a]\nkey = "{ALICE}"\nrequests_per_minute = 0', "requests_per_minute"),
        (f'[keys."a b"]\nkey = "{ALICE}"', "keys"),
        (f'[keys.a]\nkey = "{ALICE}"\n[keys.b]\nkey = "{ALICE}"', "same key"),
        ("nonsense", "Expected"),
        ("", "keys"),
        ("\n".join(f'[keys.k{i}]\nkey = "{ALICE}{i}"' for i in range(MAX_KEYS + 1)), str(MAX_KEYS)),
    ],
    ids=lambda value: value[:30],
)
def test_an_unusable_file_is_refused_at_the_start_without_a_word_of_its_keys(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says) as raised:
        read_keys(path)
    with pytest.raises(SystemExit):
        GatewaySettings.parse(["--api-keys-file", str(path)])
    shown = capsys.readouterr().err
    assert "--api-keys-file" in shown
    assert ALICE not in f"{raised.value}{shown}"


async def test_a_page_of_a_named_origin_may_call_the_gateway(tmp_path: Path) -> None:
    async with guarded_gateway(tmp_path, cors_origins="https://a.example, https://b.example") as (gateway, _):
        wish = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        for origin, allowed in (("https://b.example", True), ("https://c.example", False)):
            preflight = await gateway.http.options("/v1/completions", headers={"origin": origin, **wish})
            assert preflight.is_success == allowed, "a preflight request has no key"
            answer = await gateway.http.get("/v1/models", headers={"origin": origin, **bearer(ALICE)})
            assert answer.headers.get("access-control-allow-origin") == (origin if allowed else None)
        refused = await gateway.http.get("/v1/models", headers={"origin": "https://a.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"


async def test_without_the_setting_no_page_may(gateway: RunningGateway) -> None:
    answer = await gateway.http.get("/v1/models", headers={"origin": "https://a.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
