"""Requests on frame sessions: the tokens of all requests of an engine on one stream.

A request's own call is opened as soon as it is known that there will be a request, usually while its prompt is still
being tokenised: between idle processes, opening takes longer than what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from structlog.typing import FilteringBoundLogger

from services.common.errors import EngineLost, SessionUnknown
from services.common.open_call import OpenCall
from services.common.request_context import RequestContext
from services.detokenizer.engine_links import EngineLink, EngineLinks
from services.detokenizer.engine_session import FrameSession, GenerateCall
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
        self._runs: set[FramedRun] = set()

    def open(self, address: str, caller: RequestContext) -> FramedRun:
        run = FramedRun(self, self._links, address, caller, self._runs.discard)
        self._runs.add(run)
        return run

    def read_out(self) -> dict[str, int]:
        open_sessions = [task.result() for task in self._opened.values() if task.done()]
        return {"open_runs": len(self._runs), "session_handles": sum(len(session) for session in open_sessions)}

    async def close(self) -> None:
        for opening in self._opened.values():
            opening.cancel()
        await self._links.close()

    async def session(self, link: EngineLink) -> FrameSession:
        """The session with one engine, open. Raises EngineLost."""
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


def _open_call(link: EngineLink, caller: RequestContext) -> GenerateCall:
    return OpenCall(link.generate_framed(metadata=caller.metadata(), timeout=caller.time_remaining()))


class FramedRun:
    """An EngineRun. It holds the link to its engine, and a call. Tells `on_close` that it is closed."""

    def __init__(
        self,
        transport: FrameTransport,
        links: EngineLinks,
        address: str,
        caller: RequestContext,
        on_close: Callable[[FramedRun], None],
    ) -> None:
        self.address = address
        self._on_close = on_close
        self._transport = transport
        self._caller = caller
        self._held = ExitStack()
        self._link = self._held.enter_context(links.use(address))
        self._call = _open_call(self._link, caller)

    async def run(self, request: engine_pb2.GenerateRequest, sink: TokenSink) -> None:
        for _ in range(ATTEMPTS):
            session = await self._transport.session(self._link)
            try:
                await session.run(request, self._call, sink)
            except SessionUnknown:
                # The engine restarted, and the channel reconnected before the old stream's end was seen.
                session.give_up(EngineLost("the engine restarted"))
                self._call.close()
                self._call = _open_call(self._link, self._caller)
            else:
                return
        raise EngineLost(f"the engine lost {ATTEMPTS} frame sessions in a row")

    def close(self) -> None:
        self._call.close()
        self._held.close()
        self._on_close(self)
