"""Fetching the model's tokenizer files from the engine, at start and again whenever they changed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.channels import open_channel
from services.common.live_requests import LiveRequests
from services.common.servers import StationServer
from services.pb.postroad.v1 import engine_pb2, engine_pb2_grpc

RETRY_SECONDS = 0.2
RETRY_UNUSABLE_SECONDS = 5.0  # files that cannot be used are not likely to be better soon
Load = Callable[[Mapping[str, bytes], engine_pb2.GetModelResponse], Awaitable[None]]


def fingerprint(files: Mapping[str, bytes]) -> str:
    """SHA-256 over names and contents, hexadecimal; the definition of GetModelResponse.tokenizer_fingerprint."""
    digest = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


async def fetch(stub: engine_pb2_grpc.EngineStub) -> dict[str, bytes]:
    """All tokenizer files by name. Raises ValueError when the checksum does not match what arrived."""
    parts: dict[str, list[bytes]] = {}
    checksum = ""
    async for chunk in stub.GetTokenizerFiles(engine_pb2.GetTokenizerFilesRequest(), timeout=60):
        if chunk.name:
            parts.setdefault(chunk.name, []).append(chunk.data)
        checksum = chunk.sha256 or checksum
    files = {name: b"".join(data) for name, data in parts.items()}
    if checksum != fingerprint(files):
        raise ValueError("the tokenizer files arrived damaged")
    return files


async def keep_loaded(channel: grpc.aio.Channel, load: Load, log: FilteringBoundLogger) -> None:
    """Calls `load` with the engine's files now and after each reconnection that brings others. Runs until cancelled.

    Models of one family may share their files and differ in the size of the vocabulary; that, too, is another load.
    """
    stub = engine_pb2_grpc.EngineStub(channel)
    loaded: tuple[str, int] | None = None  # fingerprint, vocab_size
    while True:
        try:
            model = await stub.GetModel(engine_pb2.GetModelRequest(), wait_for_ready=True, timeout=30)
            found = model.tokenizer_fingerprint, model.vocab_size
            if found != loaded:
                files = await fetch(stub)
                if fingerprint(files) != model.tokenizer_fingerprint:  # the engine restarted between the two calls
                    raise ValueError("the tokenizer files are not those of the engine's model")
                await load(files, model)
                loaded = found
                log.info("tokenizer files loaded", model=model.model, fingerprint=model.tokenizer_fingerprint[:12])
            await _disconnected(channel)
        except grpc.aio.AioRpcError as error:
            log.debug("no tokenizer files yet", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        except ValueError as error:
            log.error("unusable tokenizer files", error=str(error))
            await asyncio.sleep(RETRY_UNUSABLE_SECONDS)


async def _disconnected(channel: grpc.aio.Channel) -> None:
    """Returns when the connection is gone; an engine that restarted may serve another model."""
    while (state := channel.get_state()) == grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)


async def serve_with_files(
    server: StationServer,
    engine: str,
    load: Load,
    *,
    live: LiveRequests,
    drain_timeout: float,
    log: FilteringBoundLogger,
) -> None:
    """Serves as soon as the files of the engine at `engine` are loaded, until SIGTERM or SIGINT; drains and stops then.

    What `load` raises other than ValueError ends the station: it would stay NOT_SERVING for ever.
    """

    async def load_and_serve(files: Mapping[str, bytes], model: engine_pb2.GetModelResponse) -> None:
        await load(files, model)
        await server.set_serving(True)

    async with open_channel(engine) as channel:
        loading = asyncio.create_task(keep_loaded(channel, load_and_serve, log))
        loading.add_done_callback(lambda _: server.request_stop())
        await server.run_until_stopped(live, drain_timeout)
        loading.cancel()
        with suppress(asyncio.CancelledError):
            await loading
