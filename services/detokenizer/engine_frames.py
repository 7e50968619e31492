"""Requests on frame sessions: the tokens of all requests of an engine on one stream."""

from __future__ import annotations

import asyncio
from functools import partial

from structlog.typing import FilteringBoundLogger

from services.common.errors import EngineLost, SessionUnknown
from services.common.request_context import RequestContext
from services.detokenizer.engine_links import EngineLink, EngineLinks
from services.detokenizer.engine_session import FrameSession
from services.detokenizer.token_sink import TokenSink
from services.pb.postroad.v1 import engine_pb2

ATTEMPTS = 2  # sessions that a request is tried on


class FrameTransport:
    """An EngineTransport with one frame session per engine, opened when the first request needs it."""

    def __init__(self, peer: str, log: FilteringBoundLogger) -> None:
        self._peer = peer
        self._log = log
        self._links = EngineLinks()
        self._opened: dict[EngineLink, asyncio.Task[FrameSession]] = {}  # open sessions, or on the way to be

    async def run(
        self, address: str, request: engine_pb2.GenerateRequest, caller: RequestContext, sink: TokenSink
    ) -> None:
        with self._links.use(address) as link:
            for _ in range(ATTEMPTS):
                session = await self._session(link)
                try:
                    await session.run(request, caller, sink)
                except SessionUnknown:
                    # The engine restarted, and the channel reconnected before the old stream's end was seen.
                    session.give_up(EngineLost("the engine restarted"))
                else:
                    return
        raise EngineLost(f"the engine lost {ATTEMPTS} frame sessions in a row")

    def read_out(self) -> dict[str, int]:
        open_sessions = [task.result() for task in self._opened.values() if task.done()]
        return {"session_handles": sum(len(session) for session in open_sessions)}

    async def close(self) -> None:
        for opening in self._opened.values():
            opening.cancel()
        await self._links.close()

    async def _session(self, link: EngineLink) -> FrameSession:
        opening = self._opened.get(link)
        if opening is None:
            opening = self._opened[link] = asyncio.create_task(self._open(link))
        return await asyncio.shield(opening)  # other requests wait for it, too

    async def _open(self, link: EngineLink) -> FrameSession:
        try:
            log = self._log.bind(engine=link.address)
            return await FrameSession.open(link.stub, self._peer, partial(self._opened.pop, link), log)
        except BaseException:
            del self._opened[link]
            raise
