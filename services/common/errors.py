"""The errors that leave a station, and their form on the wire.

An error is a type with a gRPC status and a reason (docs/errors.md lists them). It is raised where it is known and
turned into a status in one place, `rpc_errors`; `from_rpc` reads it back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from structlog.typing import FilteringBoundLogger

from services.common.channels import MAX_MESSAGE_BYTES

DOMAIN = "postroad"
DETAILS_KEY = "grpc-status-details-bin"

# A status travels as HTTP/2 headers, which gRPC may refuse from 8 KiB on: then the caller learns nothing of the error.
# The message is in them twice, once percent-encoded, with three bytes for one.
_MAX_MESSAGE_BYTES = 1500
_MAX_PARAM_BYTES = 200


class PostroadError(Exception):
    """An error with a gRPC status and a reason. `param` names the field at fault, as far as there is one."""

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "INTERNAL"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidArgument(PostroadError):
    """A field is out of its range."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"


class ContextLengthExceeded(PostroadError):
    """Prompt and output do not fit the model's length; the message has both numbers."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    reason = "CONTEXT_LENGTH_EXCEEDED"


class QueueFull(PostroadError):
    """Too many requests wait."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_FULL"


class TooLarge(PostroadError):
    """A message is larger than the station takes."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_LARGE"


class HandleInUse(PostroadError):
    """The session has a running request of this handle."""

    status = grpc.StatusCode.ALREADY_EXISTS
    reason = "HANDLE_IN_USE"


class SessionUnknown(PostroadError):
    """The frame session does not exist (the engine restarted): open a new one and try again."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    reason = "SESSION_UNKNOWN"


class DeadlineExceeded(PostroadError):
    """The request's time is over."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Unavailable(PostroadError):
    """Not now; the same request may succeed when sent again."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class NotReady(Unavailable):
    """The station has not loaded what it needs."""

    reason = "NOT_READY"


class Draining(Unavailable):
    """The station is about to stop."""

    reason = "DRAINING"


class EngineFailed(Unavailable):
    """A step of the engine failed and took its requests along."""

    reason = "ENGINE_FAILED"


class EngineLost(Unavailable):
    """The connection to the engine broke."""

    reason = "ENGINE_LOST"


class Internal(PostroadError):
    """A fault of ours."""


def _all_subclasses(cls: type[PostroadError]) -> list[type[PostroadError]]:
    return [cls, *(deep for sub in cls.__subclasses__() for deep in _all_subclasses(sub))]


def from_parts(status: grpc.StatusCode, reason: str, message: str, param: str | None = None) -> PostroadError:
    """The typed error of a reason; for an unknown reason one that carries the given status and reason."""
    for cls in _all_subclasses(PostroadError)[1:]:  # the base has Internal's reason
        if cls.reason == reason:
            return cls(message, param)
    error = PostroadError(message, param)
    error.status, error.reason = status, reason
    return error


def from_rpc(error: grpc.aio.AioRpcError) -> PostroadError:
    """What a failed call says, as a typed error. Statuses that gRPC itself made keep their meaning.

    Their texts do not leave with the error: they name addresses and sockets inside, and belong in the caller's log.
    """
    code = error.code()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes) and (info := _info_of(value)) is not None:
            return from_parts(code, info.reason, error.details() or code.name, info.metadata.get("param"))
    match code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED:  # a message over the receive limit
            return TooLarge(f"a message is larger than the {MAX_MESSAGE_BYTES // 2**20} MiB that a station takes")
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable("the connection failed")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded("the request's time is over")
    return from_parts(code, code.name, f"the call failed: {code.name}")


def _info_of(details: bytes) -> error_details_pb2.ErrorInfo | None:
    """A station's own part of a status; None where another service made it."""
    with suppress(DecodeError):
        for detail in status_pb2.Status.FromString(details).details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == DOMAIN:
                return info
    return None


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: PostroadError) -> NoReturn:
    """Ends the call with the error's status, message and details; a text too long for the wire is cut."""
    message = _sendable(error.message, _MAX_MESSAGE_BYTES)
    metadata = {"param": _sendable(error.param, _MAX_PARAM_BYTES)} if error.param else {}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    status = status_pb2.Status(code=error.status.value[0], message=message)
    status.details.add().Pack(info)
    await context.abort(error.status, message, ((DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort returned")


def _sendable(text: str, max_bytes: int) -> str:
    """The text as UTF-8 can carry it, without lone surrogates, in at most `max_bytes` bytes."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    ellipsis = "…"
    return encoded[: max_bytes - len(ellipsis.encode())].decode(errors="ignore") + ellipsis


@asynccontextmanager
async def rpc_errors(
    context: grpc.aio.ServicerContext[Any, Any], log: FilteringBoundLogger, request_id: str
) -> AsyncIterator[None]:
    """Around a handler's body: typed errors become their status; any other one is logged and becomes INTERNAL.

    The text of an unexpected exception stays in the log: gRPC would send it to the caller.
    """
    try:
        yield
    except PostroadError as error:
        await abort(context, error)
    except grpc.aio.AbortError:
        raise
    except Exception:
        log.exception("unexpected error", request_id=request_id)
        await abort(context, Internal("internal error"))
