"""Real engine stations with the default model's tokenizer and a scripted executor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from services.engine.core import EngineCore
from services.engine.executor.base import Executor, ExecutorInfo
from services.engine.executor.scripted import Script, ScriptedExecutor, ScriptEntry
from services.engine.loading.files import ModelFiles, read_model_files
from services.engine.loading.source import resolve
from services.engine.scheduler.config import SchedulerConfig
from services.engine.scheduler.scheduler import Scheduler
from services.engine.served_model import ServedModel
from services.engine.thread import Load
from tests.engine.running_engine import RunningEngine, running_engine


@cache
def default_files() -> ModelFiles:
    """The default model's configuration and tokenizer."""
    return read_model_files(resolve("default"))


@cache
def default_tokenizer() -> Tokenizer:
    return Tokenizer.from_buffer(default_files().tokenizer_files["tokenizer.json"])


def replaying(*token_ids: int, step_ms: float = 0, pages: int = 1024, max_model_len: int = 4096) -> ScriptedExecutor:
    """Answers every prompt with these ids, over and over."""
    info = ExecutorInfo(
        num_pages=pages, page_size=16, vocab_size=default_files().vocab_size, max_model_len=max_model_len
    )
    return ScriptedExecutor(info, Script((ScriptEntry(None, token_ids),), decode=str), step_ms)


def saying(text: str, *, finish: bool = False, **options: Any) -> ScriptedExecutor:
    """Answers every prompt with this text, over and over, or once if it shall `finish`."""
    ids = default_tokenizer().encode(text, add_special_tokens=False).ids
    return replaying(*ids, *([min(default_files().eos_token_ids)] if finish else []), **options)


def _load(executor: Executor, config: SchedulerConfig) -> Load:
    def load(publish: Callable[[ServedModel], None]) -> EngineCore:
        publish(ServedModel("scripted", default_files(), created=1))
        return EngineCore(Scheduler(config, executor.info), executor)

    return load


@asynccontextmanager
async def scripted_engine(executor: Executor, **settings: Any) -> AsyncIterator[RunningEngine]:
    """An engine in this process that serves the default model's tokenizer files and runs `executor`."""
    load = _load(executor, SchedulerConfig(max_num_seqs=256))
    async with running_engine(load=load, wait=False, **settings) as engine:
        await engine.channel.channel_ready()  # another channel may have found the port closed a moment ago
        await engine.until_health("SERVING")
        yield engine


def address(engine: RunningEngine) -> str:
    """host:port of a running engine."""
    return f"127.0.0.1:{engine.station.port}"
