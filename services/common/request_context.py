"""A request's context as it travels from station to station: id, trace and the time that remains."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass
from typing import Any, Self

import grpc

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_KEY = "traceparent"
ENGINE_KEY = "x-postroad-engine"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# W3C's trace context: version ff and ids of zeros alone are invalid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def accept_request_id(given: str | None) -> str:
    """The given id where it is usable as metadata and in logs, otherwise a new one."""
    return given if given and _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"


def accept_traceparent(given: str | None) -> str | None:
    """The given W3C trace context where it is valid."""
    return given if given and _TRACEPARENT.fullmatch(given) else None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a call's metadata and deadline say. `deadline` is in seconds of time.monotonic(), None for no deadline."""

    request_id: str
    traceparent: str | None = None
    deadline: float | None = None
    engine: str | None = None  # host:port of the engine replica that shall run the request

    @classmethod
    def from_grpc(cls, context: grpc.aio.ServicerContext[Any, Any]) -> Self:
        """The context of an incoming call."""
        given = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
        remaining = context.time_remaining()
        return cls(
            request_id=accept_request_id(given.get(REQUEST_ID_KEY)),
            traceparent=accept_traceparent(given.get(TRACEPARENT_KEY)),
            deadline=None if remaining is None else time.monotonic() + remaining,
            engine=given.get(ENGINE_KEY),
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata for the next station's call; gRPC for Python forwards none by itself."""
        pairs = (
            (REQUEST_ID_KEY, self.request_id),
            (TRACEPARENT_KEY, self.traceparent),
            (ENGINE_KEY, self.engine),
        )
        return tuple((key, value) for key, value in pairs if value)

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, at least 0, as `timeout=` of the next station's call; None for no deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
