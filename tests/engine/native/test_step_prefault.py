"""The KV pool's memory is there before a step needs it, and not much sooner."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from services.engine.models.config import ModelConfig
from services.engine.native_startup import kv_bytes_per_page
from tests.engine.models.reference import FAMILIES
from tests.engine.native.stepping import PAGE_SIZE, native_model, plan, step

LLAMA = FAMILIES["llama"]
MIB = 1 << 20
AHEAD = 256 * MIB
PAGE_BYTES = kv_bytes_per_page(ModelConfig.from_hf(LLAMA), "f32", PAGE_SIZE)
SLACK = 32 * MIB  # huge pages at the ends of layers, and what else the process takes or gives back meanwhile


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, _resident()
        time.sleep(0.01)


def test_memory_is_taken_a_fixed_way_ahead_of_the_last_page_in_use() -> None:
    num_pages = 1024 * MIB // PAGE_BYTES
    rest = 128 * MIB // PAGE_BYTES  # fewer than are taken ahead
    before = _resident()
    model = native_model(LLAMA, num_pages=num_pages)
    _until(lambda: _resident() - before > AHEAD - SLACK)
    step(model, plan([1, 2, 3], [num_pages - rest - 1]))
    _until(lambda: _resident() - before > AHEAD + rest * PAGE_BYTES - SLACK)
    assert _resident() - before < AHEAD + rest * PAGE_BYTES + SLACK
    del model
    assert _resident() - before < SLACK


def test_a_model_goes_while_its_memory_is_being_taken() -> None:
    before = _resident()
    for _ in range(5):
        native_model(LLAMA, num_pages=1024 * MIB // PAGE_BYTES)
        assert _resident() - before < AHEAD
