"""One project for all tests, in its plain state at the start of each: a container per service, all healthy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers.compose import Compose


@pytest.fixture(scope="session")
def project() -> Iterator[Compose]:
    """The images built, the project up."""
    compose = Compose()
    compose.down()  # what an interrupted run left: its containers come back with the engine
    compose.build()
    try:
        compose.up()
        yield compose
    finally:
        compose.down()


@pytest.fixture
def road(project: Compose) -> Compose:
    """Whatever the test before did to it, the road is whole."""
    project.up()
    return project


@pytest.fixture(scope="module")
def two_ranks(project: Compose) -> Iterator[Compose]:
    """With an engine of two ranks, a container each."""
    compose = project.with_settings(COMPOSE_PROFILES="tp2", POSTROAD_ENGINE_TENSOR_PARALLEL_SIZE="2")
    compose.up()
    yield compose
    compose.run("rm", "--stop", "--force", "engine-rank-1")
