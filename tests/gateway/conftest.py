from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.gateway.support.running import RunningGateway, running_gateway


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    """A gateway over one replica of each scripted station."""
    async with running_gateway() as running:
        yield running
