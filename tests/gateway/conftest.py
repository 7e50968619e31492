from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.gateway.support.running import RunningGateway, running_gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway() -> AsyncIterator[RunningGateway]:
    """One for all tests of a module that leave it as it was; they run in the module's event loop."""
    async with running_gateway() as running:
        yield running


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    """A gateway over one replica of each scripted station."""
    async with running_gateway() as running:
        yield running
