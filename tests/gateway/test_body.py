from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.gateway.support.running import RawClient, running_gateway


async def test_fieldbug_18_a_body_over_the_limit_gets_413_before_it_is_read() -> None:
    async with running_gateway(max_body_bytes=1000) as gateway:
        client = await RawClient.connect(gateway.port)
        await client.post("/v1/chat/completions", b"{", length=10**12)
        head = await client.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413")
        await client.close()
        await gateway.assert_idle()


async def test_fieldbug_18_a_chunked_body_over_the_limit_gets_413() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async with running_gateway(max_body_bytes=1000) as gateway:
        response = await gateway.http.post("/v1/chat/completions", content=parts())
        assert response.status_code == 413
        assert "1000 bytes" in response.json()["error"]["message"]
        assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 400), ("gzip, br", 400), ("identity", 200), ("", 200)])
async def test_a_compressed_body_is_refused_by_name(encoding: str, status: int) -> None:
    async with running_gateway() as gateway:
        body = b'{"messages": [{"role": "user", "content": "x"}]}'
        headers = {"content-encoding": encoding}
        response = await gateway.http.post("/v1/chat/completions", content=body, headers=headers)
        assert response.status_code == status
        if status == 400:
            error = response.json()["error"]
            assert (error["param"], error["code"]) == ("content-encoding", "unsupported_parameter")
            assert encoding in error["message"]


async def test_a_body_in_pieces_is_read_to_its_end() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for piece in (b'{"messages": [{"role"', b': "user", "content', b'": "x"}]}'):
            yield piece

    async with running_gateway() as gateway:
        assert (await gateway.http.post("/v1/chat/completions", content=parts())).status_code == 200


async def test_a_body_that_never_comes_ends_with_the_deadline() -> None:
    async with running_gateway(request_timeout=0.2) as gateway:
        client = await RawClient.connect(gateway.port)
        await client.post("/v1/chat/completions", b"{", length=100)
        assert (await client.read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 408")
        await client.close()
        await gateway.assert_idle()


async def test_fieldbug_20_a_client_that_leaves_in_mid_body_leaves_nothing_behind() -> None:
    async with running_gateway() as gateway:
        client = await RawClient.connect(gateway.port)
        await client.post("/v1/chat/completions", b"{", length=100)
        await client.close()
        await gateway.assert_idle()
