"""Roads that many tests share. A test that kills services or changes flags starts its own `Stack`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stack import Stack


@pytest.fixture(scope="session")
def real_stack() -> Iterator[Stack]:
    """The default model in float32, so that greedy text can be compared exactly."""
    with Stack(engine_flags="--dtype float32 --kv-cache-memory 1GiB") as stack:
        yield stack


@pytest.fixture(scope="session")
def scripted_stack() -> Iterator[Stack]:
    """The scripted executor: no weights, its texts on a clock."""
    with Stack(engine_flags="--executor scripted") as stack:
        yield stack
