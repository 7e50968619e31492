"""Frame sessions: the tokens of all requests of one peer on one stream.

Requests put tokens and events into their session; its one writer, the OpenFrames handler, takes them as a frame. It
wakes after the event loop has handled a step's report, so a frame holds at least the whole step, and more only where
the writer fell behind. A handle is in use until the frame with its end was taken: no frame holds two requests of one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from services.common.errors import HandleInUse, PostroadError, SessionUnknown
from services.engine.plan import TokenLogprobs
from services.engine.reporting import RequestRecord
from services.engine.requests import LiveRequest, joined
from services.engine.scheduler.sequence import FinishReason, Sequence
from services.engine.wire import stream_end, stream_start, token_logprobs
from services.pb.postroad.v1 import engine_pb2


class FramedRequest(LiveRequest):
    """A request of a session. `outcome` is what its call returns or raises."""

    __slots__ = ("_end", "_error", "_session", "_started", "handle", "outcome")

    def __init__(self, sequence: Sequence, record: RequestRecord, session: FrameSession, handle: int) -> None:
        super().__init__(sequence, record)
        self.handle = handle
        self.outcome: asyncio.Future[engine_pb2.StreamEnd] = asyncio.get_running_loop().create_future()
        self._session = session
        self._started = False
        self._end = engine_pb2.StreamEnd()
        self._error: PostroadError | None = None

    def on_prompt_logprobs(self, logprobs: TokenLogprobs) -> None:
        self._session.put_event(engine_pb2.FrameEvent(handle=self.handle, prompt_logprobs=token_logprobs(logprobs)))

    def on_tokens(self, token_ids: Iterable[int], logprobs: TokenLogprobs | None) -> None:
        if not self._started:
            self._started = True
            self._session.put_event(engine_pb2.FrameEvent(handle=self.handle, start=stream_start(self.sequence)))
        self._session.put_tokens(self.handle, token_ids)
        if logprobs is not None:
            self._session.put_logprobs(self.handle, logprobs)

    def on_end(self, reason: FinishReason, error: PostroadError | None) -> None:
        self._end, self._error = stream_end(self.sequence, reason, error), error
        self._session.put_event(engine_pb2.FrameEvent(handle=self.handle, end=self._end))
        self._session.put_ended(self)

    def resolve(self) -> None:
        """The frame with the end was taken."""
        if not self.outcome.done():  # its call may have been cancelled
            if self._error is not None:
                self.outcome.set_exception(self._error)
            else:
                self.outcome.set_result(self._end)


class FrameSession:
    """One peer's frame stream and its requests."""

    def __init__(self, session_id: int, peer: str) -> None:
        self.session_id = session_id
        self.peer = peer
        self.requests: dict[int, FramedRequest] = {}  # by handle
        self._handles: list[int] = []
        self._token_ids: list[int] = []
        self._events: list[engine_pb2.FrameEvent] = []
        self._logprobs: dict[int, TokenLogprobs] = {}  # by handle, of its tokens in the next frame
        self._ended: list[FramedRequest] = []
        self._closing = False
        self._wake = asyncio.Event()

    @property
    def num_unsent(self) -> int:
        """Tokens and events that wait for the next frame."""
        return len(self._token_ids) + len(self._events)

    def require_free(self, handle: int) -> None:
        """Raises HandleInUse."""
        if handle in self.requests:
            raise HandleInUse(f"the session has a running request with the handle {handle}", "handle")

    def put_tokens(self, handle: int, token_ids: Iterable[int]) -> None:
        if not self._token_ids:
            self._wake.set()
        for token_id in token_ids:
            self._handles.append(handle)
            self._token_ids.append(token_id)

    def put_logprobs(self, handle: int, logprobs: TokenLogprobs) -> None:
        """Those of the tokens that were put for the handle just before."""
        self._logprobs[handle] = joined(self._logprobs.get(handle), logprobs)

    def put_event(self, event: engine_pb2.FrameEvent) -> None:
        self._events.append(event)
        self._wake.set()

    def put_ended(self, request: FramedRequest) -> None:
        """Frees the handle, and lets the call return, when the next frame is taken."""
        self._ended.append(request)

    async def wait(self) -> bool:
        """Sleeps until there is something to send. False when there is nothing and never will be."""
        if not self.num_unsent and not self._closing:
            await self._wake.wait()
        self._wake.clear()
        return bool(self.num_unsent)

    def take_frame(self, step: int) -> engine_pb2.StepFrame:
        """All that waits, as one frame."""
        frame = engine_pb2.StepFrame(step=step, handles=self._handles, token_ids=self._token_ids, events=self._events)
        for handle, logprobs in self._logprobs.items():
            frame.logprobs.add(handle=handle, logprobs=token_logprobs(logprobs))
        self._handles, self._token_ids, self._events, self._logprobs = [], [], [], {}
        ended, self._ended = self._ended, []
        for request in ended:
            del self.requests[request.handle]
            request.resolve()
        return frame

    def finish(self) -> None:
        """Lets the stream end after what waits now."""
        self._closing = True
        self._wake.set()

    def abandon(self, error: PostroadError) -> list[FramedRequest]:
        """The stream is gone: ends all calls with `error`; returns the requests whose sequences still run."""
        requests = list(self.requests.values())
        self.requests.clear()
        for request in requests:
            if not request.outcome.done():
                request.outcome.set_exception(error)
        return [request for request in requests if not request.ended]


class SessionTable:
    """The open sessions. Ids are random, so that an id from before a restart is not taken for one of this run."""

    def __init__(self) -> None:
        self.num_opened = 0  # since the start
        self._sessions: dict[int, FrameSession] = {}

    @property
    def num_requests(self) -> int:
        """Handles in use, over all sessions."""
        return sum(len(session.requests) for session in self._sessions.values())

    @property
    def num_unsent(self) -> int:
        return sum(session.num_unsent for session in self._sessions.values())

    def open(self, peer: str) -> FrameSession:
        while (session_id := random.getrandbits(64)) in self._sessions or session_id == 0:
            pass
        self.num_opened += 1
        session = self._sessions[session_id] = FrameSession(session_id, peer)
        return session

    def get(self, session_id: int) -> FrameSession:
        """Raises SessionUnknown."""
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionUnknown("the engine does not know this session: open a new one and try again", "session_id")
        return session

    def remove(self, session: FrameSession) -> None:
        del self._sessions[session.session_id]

    def finish_all(self) -> None:
        """Lets every frame stream end after what waits in it."""
        for session in self._sessions.values():
            session.finish()
