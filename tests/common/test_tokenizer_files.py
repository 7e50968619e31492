"""The engine's tokenizer files: whole, of the right model, and anew when it changes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from services.common import tokenizer_files
from services.common.channels import open_channel
from services.common.errors import NotReady, abort
from services.common.live_requests import LiveRequests
from services.common.servers import StationServer
from services.common.tokenizer_files import fetch, fingerprint, keep_loaded, serve_with_files
from services.engine.core import EngineCore
from services.engine.loading.files import ModelFiles
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.served_model import ServedModel
from services.engine.thread import Load
from services.pb.postroad.v1 import debug_pb2, engine_pb2, engine_pb2_grpc
from tests.common.serving import SERVICE, Served, captured_log
from tests.engine.running_engine import running_engine, scripted
from tests.support.polling import WAIT_SECONDS, until
from tests.support.ports import free_ports

FILES = {"tokenizer.json": bytes(range(256)) * 3000, "tokenizer_config.json": b"{}", "chat_template.jinja": b""}
OTHER_FILES = {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}


def engine_of(files: dict[str, bytes]) -> Load:
    """What an engine runs whose model has these files."""
    model = ModelFiles(
        config={"hidden_size": 64},
        vocab_size=1000,
        eos_token_ids=frozenset({999}),
        tokenizer_files=files,
        tokenizer_fingerprint=fingerprint(files),
    )

    def load(publish: Callable[[ServedModel], None]) -> EngineCore:
        publish(ServedModel("tiny", model, created=1))
        executor = scripted(10)
        return EngineCore(Scheduler(SchedulerConfig(), executor.info), executor)

    return load


@dataclass
class FilesEngine(engine_pb2_grpc.EngineServicer):
    """An engine that sends what a test says: for what a real one does by chance only."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    vocab_size: int = 1000
    max_model_len: int = 0
    checksum: str | None = None  # None: the right one
    after_get_model: Callable[[], None] = lambda: None
    ready: bool = True
    asked: int = 0  # GetModel calls so far

    async def GetModel(self, request: Any, context: Any) -> engine_pb2.GetModelResponse:
        self.asked += 1
        if not self.ready:
            await abort(context, NotReady("reading"))
        response = engine_pb2.GetModelResponse(
            model="m",
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            tokenizer_fingerprint=fingerprint(self.files),
        )
        self.after_get_model()
        return response

    async def GetTokenizerFiles(self, request: Any, context: Any) -> AsyncIterator[engine_pb2.TokenizerFileChunk]:
        for name, data in self.files.items():
            yield engine_pb2.TokenizerFileChunk(name=name, data=data)
        yield engine_pb2.TokenizerFileChunk(sha256=fingerprint(self.files) if self.checksum is None else self.checksum)


@asynccontextmanager
async def listening(engine: FilesEngine, port: int = 0, connection_age_ms: int = 3_600_000) -> AsyncIterator[str]:
    """Serves the engine; its address. A connection lives for about `connection_age_ms`."""
    options = [("grpc.so_reuseport", 0), ("grpc.max_connection_age_ms", connection_age_ms)]
    server = grpc.aio.server(options=options)
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class Loads:
    """A FilesUser: what it was given, and the exceptions that `load` shall raise first."""

    def __init__(self, *failures: Exception) -> None:
        self.files: list[Mapping[str, bytes]] = []
        self.models: list[engine_pb2.GetModelResponse] = []
        self.lengths: list[int] = []  # max_model_len of each model that was told
        self.unusable = 0  # times
        self.failures = list(failures)

    async def load(self, files: Mapping[str, bytes], model: engine_pb2.GetModelResponse) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.files.append(files)
        self.models.append(model)

    def on_model(self, model: engine_pb2.GetModelResponse) -> None:
        self.lengths.append(model.max_model_len)

    async def on_unusable(self) -> None:
        self.unusable += 1


@asynccontextmanager
async def kept_loaded(address: str, loads: Loads) -> AsyncIterator[list[Any]]:
    """`keep_loaded` at work; its log."""
    log, logs = captured_log()
    async with open_channel(address) as channel:
        task = asyncio.create_task(keep_loaded(channel, loads, log))
        try:
            yield logs
        finally:
            assert not task.done(), "it runs until cancelled"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def _no_pause_after_unusable_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "RETRY_UNUSABLE_SECONDS", 0.01)


def test_the_fingerprint_is_of_names_and_contents_in_any_order() -> None:
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in (b"a", b"xy", "é".encode(), b""))
    assert fingerprint({"é": b"", "a": b"xy"}) == fingerprint({"a": b"xy", "é": b""})
    assert fingerprint({"é": b"", "a": b"xy"}) == hashlib.sha256(framed).hexdigest()
    assert len({fingerprint(files) for files in ({}, {"a": b"xy"}, {"ax": b"y"}, {"a": b"x", "y": b""})}) == 4


async def test_fetched_files_are_the_engine_s() -> None:
    async with running_engine(load=engine_of(FILES)) as engine:
        assert await fetch(engine.stub) == FILES
        model = await engine.stub.GetModel(engine_pb2.GetModelRequest())
    assert model.tokenizer_fingerprint == fingerprint(FILES)


@pytest.mark.parametrize("checksum", ["", "0" * 64, fingerprint(OTHER_FILES)])
async def test_a_damaged_transfer_is_told(checksum: str) -> None:
    async with listening(FilesEngine(checksum=checksum)) as address, open_channel(address) as channel:
        with pytest.raises(ValueError, match="damaged"):
            await fetch(engine_pb2_grpc.EngineStub(channel))


@pytest.mark.usefixtures("_no_pause_after_unusable_files")
async def test_damaged_files_are_not_loaded_but_fetched_again() -> None:
    engine, loads = FilesEngine(checksum="0" * 64), Loads()
    async with listening(engine) as address, kept_loaded(address, loads) as logs:
        await until(lambda: engine.asked >= 3)
        assert loads.files == []
        assert {entry["event"] for entry in logs} == {"unusable tokenizer files"}
        engine.checksum = None
        await until(lambda: loads.files == [FILES])


async def test_an_engine_that_starts_later_is_waited_for() -> None:
    (port,) = free_ports(1)
    engine, loads = FilesEngine(ready=False), Loads()
    async with kept_loaded(f"127.0.0.1:{port}", loads), listening(engine, port):
        await until(lambda: engine.asked >= 2)
        assert loads.files == []
        engine.ready = True
        await until(lambda: loads.files == [FILES])


async def test_an_engine_that_restarts_with_other_files_brings_them() -> None:
    (port,) = free_ports(1)
    loads = Loads()
    async with kept_loaded(f"127.0.0.1:{port}", loads):
        async with running_engine(load=engine_of(FILES), port=port):
            await until(lambda: loads.files == [FILES])
        async with running_engine(load=engine_of(OTHER_FILES), port=port, wait=False):
            await until(lambda: loads.files == [FILES, OTHER_FILES])
    assert [model.tokenizer_fingerprint for model in loads.models] == [fingerprint(FILES), fingerprint(OTHER_FILES)]


async def test_a_reconnection_to_the_same_files_changes_nothing() -> None:
    engine, loads = FilesEngine(), Loads()
    async with listening(engine, connection_age_ms=50) as address, kept_loaded(address, loads):
        await until(lambda: engine.asked >= 5)
    assert loads.files == [FILES]


async def test_a_model_with_the_same_files_and_another_vocabulary_is_loaded() -> None:
    """The sizes of one family share a tokenizer; the vocabularies of their weights are padded differently."""
    (port,) = free_ports(1)
    loads = Loads()
    async with kept_loaded(f"127.0.0.1:{port}", loads):
        async with listening(FilesEngine(vocab_size=1000), port):
            await until(lambda: len(loads.models) == 1)
        async with listening(FilesEngine(vocab_size=1024), port):
            await until(lambda: [model.vocab_size for model in loads.models] == [1000, 1024])


@pytest.mark.usefixtures("_no_pause_after_unusable_files")
async def test_files_of_another_model_than_the_engine_named_are_not_loaded() -> None:
    """The engine restarted after it named its model and before it sent the files."""
    engine, loads = FilesEngine(), Loads()

    def restart() -> None:
        engine.files, engine.vocab_size = OTHER_FILES, 2000

    engine.after_get_model = restart
    async with listening(engine) as address, kept_loaded(address, loads):
        await until(lambda: len(loads.files) > 0)
    assert loads.files == [OTHER_FILES]
    assert [model.vocab_size for model in loads.models] == [2000]


@asynccontextmanager
async def station(engine: str, loads: Loads) -> AsyncIterator[tuple[Served, asyncio.Task[bool]]]:
    """A station that serves with the engine's files, and its run."""
    log, logs = captured_log()
    server = StationServer(SERVICE, "127.0.0.1:0", debug_pb2.ReadOutResponse, log)
    await server.start()
    running = asyncio.create_task(
        serve_with_files(
            server, engine, loads.load, on_model=loads.on_model, live=LiveRequests(), drain_timeout=0, log=log
        )
    )
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        try:
            yield Served(server, channel, log, logs), running
        finally:
            await channel.close()
            server.request_stop()
            await asyncio.wait([running], timeout=WAIT_SECONDS)


async def until_health(view: Served, state: str) -> None:
    async def is_reached() -> bool:
        return await view.health() == state

    await until(is_reached)


async def until_serving(view: Served) -> None:
    await until_health(view, "SERVING")


async def test_fieldbug_28_a_station_serves_once_the_files_are_loaded() -> None:
    engine, loads = FilesEngine(ready=False), Loads()
    async with listening(engine) as address, station(address, loads) as (view, running):
        await until(lambda: engine.asked >= 2)
        assert await view.health() == "NOT_SERVING"
        engine.ready = True
        await until_serving(view)
        assert loads.files == [FILES]
        view.server.request_stop()
        async with asyncio.timeout(WAIT_SECONDS):
            assert await running


@pytest.mark.usefixtures("_no_pause_after_unusable_files")
async def test_a_load_that_may_go_better_is_tried_again() -> None:
    loads = Loads(ValueError("no vocabulary"), OSError("No space left on device"))
    async with listening(FilesEngine()) as address, station(address, loads) as (view, _):
        await until_serving(view)
        errors = [entry["error"] for entry in view.logs if entry["event"] == "unusable tokenizer files"]
    assert errors == ["no vocabulary", "No space left on device"]
    assert loads.files == [FILES]


async def test_a_load_that_fails_in_another_way_ends_the_station() -> None:
    loads = Loads(ImportError("no module named jinja2"))
    async with listening(FilesEngine()) as address, station(address, loads) as (view, running):
        async with asyncio.timeout(WAIT_SECONDS):
            assert await running is False
        assert view.events()[-2:] == ["stopped", "the tokenizer files cannot be loaded, for good"]
        assert "ImportError: no module named jinja2" in view.logs[-1]["exception"]
    assert loads.files == []


@pytest.mark.usefixtures("_no_pause_after_unusable_files")
async def test_a_station_does_not_serve_with_the_files_of_a_model_that_is_gone() -> None:
    (port,) = free_ports(1)
    loads = Loads()
    async with station(f"127.0.0.1:{port}", loads) as (view, _):
        async with listening(FilesEngine(), port):
            await until_serving(view)
        other = FilesEngine(OTHER_FILES, checksum="0" * 64)
        async with listening(other, port):
            await until_health(view, "NOT_SERVING")
            assert loads.files == [FILES]
        async with listening(FilesEngine(), port):
            await until_serving(view)
        assert loads.files == [FILES, FILES]


async def test_the_model_s_length_is_told_once_the_engine_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "MODEL_POLL_SECONDS", 0.01)
    engine, loads = FilesEngine(), Loads()
    async with listening(engine) as address, kept_loaded(address, loads):
        await until(lambda: len(loads.lengths) >= 2)
        assert set(loads.lengths) == {0}
        engine.max_model_len = 512
        await until(lambda: loads.lengths[-1] == 512)
    assert loads.files == [FILES]
