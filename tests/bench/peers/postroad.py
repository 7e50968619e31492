"""Postroad itself: the four services, as the launcher runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlsplit

from tests.bench.load import load
from tests.bench.models import model_folder
from tests.bench.peers.base import Peer, Server
from tests.bench.scenarios import Scenario, Width
from tests.bench.sse_client import Answer
from tests.support.stack import Stack


class Postroad(Peer):
    name: ClassVar[str] = "Postroad"
    version: ClassVar[str] = "0.1.0"
    formats: ClassVar[Mapping[Width, Sequence[str]]] = {"bf16": ("bf16",), "8-bit": ("int8",), "4-bit": ("int4",)}

    def set_up(self) -> None:
        """`make` has done it."""

    def convert(self, model: str, weight_format: str) -> Path:
        return model_folder(self.root / "models", model)

    def server(self, model: str, weight_format: str) -> Road:
        quantization = "" if weight_format == "bf16" else f"--quantization {weight_format}"
        return Road(self.convert(model, weight_format), f"--max-model-len 2048 --max-num-seqs 32 {quantization}")


class Road(Server):
    """Is not paused: idle, it uses no core, and its services would take one another for lost."""

    def __init__(self, model: Path, engine_flags: str) -> None:
        self._stack = Stack(model=str(model), engine_flags=engine_flags)

    @property
    def pid(self) -> int:
        return self._stack.launcher_pid

    def run(self, scenario: Scenario, seed: int) -> Sequence[Answer]:
        url = urlsplit(self._stack.url)
        assert url.hostname is not None
        assert url.port is not None
        return asyncio.run(load((url.hostname, url.port), "", scenario, seed))

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.__exit__()
