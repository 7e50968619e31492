"""Fetching the model's tokenizer files from the engine, at start and again whenever they changed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

import grpc
from structlog.typing import FilteringBoundLogger

from services.common.channels import open_channel
from services.common.live_requests import LiveRequests
from services.common.servers import StationServer
from services.pb.postroad.v1 import engine_pb2, engine_pb2_grpc

RETRY_SECONDS = 0.2
RETRY_UNUSABLE_SECONDS = 5.0  # files that cannot be used are not likely to be better soon
MODEL_POLL_SECONDS = 1.0  # while the engine does not know its model's length yet
Load = Callable[[Mapping[str, bytes], engine_pb2.GetModelResponse], Awaitable[None]]
OnModel = Callable[[engine_pb2.GetModelResponse], None]


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


class FilesUser(Protocol):
    """What `keep_loaded` keeps supplied."""

    async def load(self, files: Mapping[str, bytes], model: engine_pb2.GetModelResponse) -> None:
        """Takes the files. Raises ValueError or OSError if that may go better later."""

    def on_model(self, model: engine_pb2.GetModelResponse) -> None:
        """What the engine said; the files of this model are loaded. `max_model_len` is 0 until the engine is ready."""

    async def on_unusable(self) -> None:
        """The engine has files that cannot be used: what was loaded before is not its model's any more."""


async def keep_loaded(channel: grpc.aio.Channel, user: FilesUser, log: FilteringBoundLogger) -> None:
    """Loads the engine's files now and after each reconnection that brings others. Runs until cancelled.

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
                await user.load(files, model)
                loaded = found
                log.info("tokenizer files loaded", model=model.model, fingerprint=model.tokenizer_fingerprint[:12])
            user.on_model(model)
            await _disconnected(channel, at_most=None if model.max_model_len else MODEL_POLL_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.debug("no tokenizer files yet", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        except (ValueError, OSError) as error:
            log.error("unusable tokenizer files", error=str(error))
            loaded = None
            await user.on_unusable()
            await asyncio.sleep(RETRY_UNUSABLE_SECONDS)


async def _disconnected(channel: grpc.aio.Channel, at_most: float | None) -> None:
    """Returns when the connection is gone, or after `at_most` seconds; a restarted engine may serve another model."""
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most):
            while (state := channel.get_state()) == grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)


class _ServingUser:
    """A station that serves exactly while its files are the engine's."""

    def __init__(self, server: StationServer, load: Load, on_model: OnModel) -> None:
        self._server = server
        self._load = load
        self.on_model = on_model

    async def load(self, files: Mapping[str, bytes], model: engine_pb2.GetModelResponse) -> None:
        await self._load(files, model)
        await self._server.set_serving(True)

    async def on_unusable(self) -> None:
        await self._server.set_serving(False)


async def serve_with_files(
    server: StationServer,
    engine: str,
    load: Load,
    *,
    on_model: OnModel = lambda _: None,
    live: LiveRequests,
    drain_timeout: float,
    log: FilteringBoundLogger,
) -> bool:
    """Serves as soon as the files of the engine at `engine` are loaded, until SIGTERM or SIGINT; drains and stops then.

    What `load` raises other than ValueError and OSError ends the station, which would stay NOT_SERVING for ever: it is
    logged, and the result is False.
    """
    async with open_channel(engine) as channel:
        loading = asyncio.create_task(keep_loaded(channel, _ServingUser(server, load, on_model), log))
        loading.add_done_callback(lambda _: server.request_stop())
        await server.run_until_stopped(live, drain_timeout)
        loading.cancel()
        try:
            await loading
        except asyncio.CancelledError:
            return True
        except Exception:
            log.exception("the tokenizer files cannot be loaded, for good")
        return False
