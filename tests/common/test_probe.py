"""The containers' health check, as they run it."""

from __future__ import annotations

import asyncio
import sys

from tests.common.serving import SERVICE, served
from tests.support.ports import free_ports


async def probe(*args: str) -> tuple[int, str]:
    """Exit status and what was written to standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.common.probe", *args, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()


async def test_a_station_that_serves() -> None:
    async with served() as station:
        assert await probe(station.address, SERVICE) == (0, "")


async def test_a_station_that_does_not_serve() -> None:
    async with served(serving=False) as station:
        assert await probe(station.address, SERVICE) == (1, "NOT_SERVING\n")


async def test_another_service_nobody_there_and_wrong_arguments() -> None:
    async with served() as station:
        status, errors = await probe(station.address, "postroad.v1.Engine")
        assert status == 1
        assert errors.startswith("NOT_FOUND")
    (port,) = free_ports(1)
    status, errors = await probe(f"127.0.0.1:{port}", SERVICE)
    assert status == 1
    assert errors.startswith("UNAVAILABLE")
    status, errors = await probe()
    assert status == 1
    assert errors.startswith("usage")


async def answering(status_line: bytes) -> asyncio.Server:
    """An HTTP server that has one answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status_line + b"\r\ncontent-length: 4\r\nconnection: close\r\n\r\nwhy?")
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def test_http() -> None:
    for status_line, expected in ((b"200 OK", (0, "")), (b"503 Service Unavailable", (1, "503: why?\n"))):
        async with await answering(status_line) as server:
            port = server.sockets[0].getsockname()[1]
            assert await probe(f"http://127.0.0.1:{port}/ready") == expected
    status, errors = await probe(f"http://127.0.0.1:{port}/ready")
    assert status == 1
    assert "refused" in errors
