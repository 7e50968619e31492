"""Typed errors over a real call: what a station raises is what its caller reads back."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from services.common import errors
from services.common.channels import open_channel
from services.common.errors import PostroadError, abort, from_parts, from_rpc, rpc_errors
from services.pb.postroad.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.common.serving import Handler, Served, captured_log, served
from tests.support.polling import until
from tests.support.ports import free_ports

SUBCLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, PostroadError) and cls is not PostroadError
]
UNICODE = "prompt: „naïve 日本 🦊“ \n\t %41 is 5 % too long"


@asynccontextmanager
async def raising(error: BaseException) -> AsyncIterator[Served]:
    """A server whose handler raises `error`; its log is that of the handler."""
    log, logs = captured_log()

    async def handler(request: Any, context: Any) -> Any:
        async with rpc_errors(context, log, "req-7"):
            raise error

    async with served(handler) as server:
        server.logs = logs
        yield server


async def failure(server: Served, *texts: str, **call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await server.encode(*texts, **call)
    return raised.value


def test_every_error_has_a_reason_of_its_own() -> None:
    assert len(SUBCLASSES) >= 12
    assert len({cls.reason for cls in SUBCLASSES}) == len(SUBCLASSES)


@pytest.mark.parametrize("param", [None, "messages[0].content"])
@pytest.mark.parametrize("cls", SUBCLASSES)
async def test_what_is_raised_is_what_the_caller_reads(cls: type[PostroadError], param: str | None) -> None:
    async with raising(cls(UNICODE, param)) as server:
        status = await failure(server)
        read = from_rpc(status)
    assert type(read) is cls
    assert status.code() is cls.status
    assert (read.status, read.reason, read.message, read.param) == (cls.status, cls.reason, UNICODE, param)
    assert server.logs == []


async def test_a_reason_of_a_later_version_keeps_status_and_reason() -> None:
    error = from_parts(grpc.StatusCode.ABORTED, "NEW_REASON", "from the future", "field")
    async with raising(error) as server:
        read = from_rpc(await failure(server))
    assert (read.status, read.reason, read.message, read.param) == (
        grpc.StatusCode.ABORTED,
        "NEW_REASON",
        "from the future",
        "field",
    )


@pytest.mark.parametrize("letter", ["x", "é", "日", "🦊"])
@pytest.mark.parametrize("length", [1_000, 10_000, 100_000])
async def test_a_message_that_no_header_holds_is_cut_and_stays_the_same_error(letter: str, length: int) -> None:
    """A template's own words may be as long as the chat; gRPC drops headers above 8 KiB by chance, above 16 always."""
    message = letter * length
    async with raising(errors.InvalidArgument(message, message)) as server:
        read = from_rpc(await failure(server))
    assert type(read) is errors.InvalidArgument
    assert read.param is not None
    for text, least in ((read.message, 300), (read.param, 40)):
        assert len(text) >= least
        assert text == message or (text[-1] == "…" and message.startswith(text[:-1]))


async def test_a_lone_surrogate_in_a_message_does_not_hide_the_error() -> None:
    async with raising(errors.InvalidArgument("no such role: '\ud800'", "\udfff")) as server:
        read = from_rpc(await failure(server))
    assert type(read) is errors.InvalidArgument
    assert (read.message, read.param) == ("no such role: '?'", "?")


async def test_an_unexpected_exception_is_internal_and_its_text_stays_in_the_log() -> None:
    async with raising(KeyError("secret-path")) as server:
        status = await failure(server)
    assert type(from_rpc(status)) is errors.Internal
    assert status.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in f"{status.details()} {status.debug_error_string()} {status.trailing_metadata()}"
    (entry,) = server.logs
    assert (entry["event"], entry["request_id"], entry["log_level"]) == ("unexpected error", "req-7", "error")
    assert "secret-path" in entry["exception"]


async def test_another_station_s_failure_is_not_ours_to_show() -> None:
    """A call's error that nobody translated: its text names addresses."""
    (port,) = free_ports(1)
    log, logs = captured_log()

    async def handler(request: Any, context: Any) -> Any:
        async with rpc_errors(context, log, "req-7"), open_channel(f"127.0.0.1:{port}") as channel:
            return await tokenizer_pb2_grpc.TokenizerStub(channel).Encode(request)

    async with served(handler) as server:
        status = await failure(server)
    assert (type(from_rpc(status)), status.details()) == (errors.Internal, "internal error")
    assert str(port) in logs[0]["exception"]


async def test_details_that_another_service_made_do_no_harm() -> None:
    async def by_hand(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "x", ((errors.DETAILS_KEY, b"\xff no message"),))

    async with served(by_hand) as server:
        assert type(from_rpc(await failure(server))) is errors.TooLarge


async def test_an_abort_inside_passes_as_it_is() -> None:
    log, logs = captured_log()

    async def by_hand(request: Any, context: Any) -> Any:
        async with rpc_errors(context, log, "req-7"):
            await context.abort(grpc.StatusCode.DATA_LOSS, "by hand")

    async def typed(request: Any, context: Any) -> Any:
        async with rpc_errors(context, log, "req-7"):
            await abort(context, errors.QueueFull("1,024 requests wait"))

    async with served(by_hand) as server:
        status = await failure(server)
        assert (status.code(), status.details()) == (grpc.StatusCode.DATA_LOSS, "by hand")
    async with served(typed) as server:
        assert type(from_rpc(await failure(server))) is errors.QueueFull
    assert logs == []


async def test_a_cancelled_call_is_cancelled_inside_and_not_logged() -> None:
    log, logs = captured_log()
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: Any, context: Any) -> Any:
        async with rpc_errors(context, log, "req-7"):
            entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

    async with served(handler) as server:
        call = asyncio.create_task(server.encode())
        await entered.wait()
        call.cancel()
        await until(cancelled.is_set)
    assert logs == []


async def waits_for_ever(request: Any, context: Any) -> Any:
    await asyncio.Event().wait()


async def raises_outside(request: Any, context: Any) -> Any:
    raise ZeroDivisionError


async def aborts_plainly(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT)


@pytest.mark.parametrize(
    ("handler", "call", "cls", "status"),
    [
        (waits_for_ever, {"timeout": 0.05}, errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
        (raises_outside, {}, PostroadError, grpc.StatusCode.UNKNOWN),
        (aborts_plainly, {}, errors.InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_statuses_without_our_details(
    handler: Handler, call: dict[str, Any], cls: type[PostroadError], status: grpc.StatusCode
) -> None:
    async with served(handler) as server:
        read = from_rpc(await failure(server, **call))
    assert type(read) is cls
    assert (read.status, read.reason, read.param) == (status, status.name, None)
    assert read.message in ("the request's time is over", f"the call failed: {status.name}"), "none of gRPC's own"


async def test_no_server_is_unavailable() -> None:
    (port,) = free_ports(1)
    async with open_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await tokenizer_pb2_grpc.TokenizerStub(channel).Encode(tokenizer_pb2.EncodeRequest())
    read = from_rpc(raised.value)
    assert (type(read), read.message) == (errors.Unavailable, "the connection failed"), "gRPC's text has the address"
    assert str(port) in str(raised.value.details())


async def test_an_unknown_method_keeps_its_status() -> None:
    async with served() as server:
        sing: Any = server.channel.unary_unary("/postroad.v1.Tokenizer/Sing")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await sing(b"")
    read = from_rpc(raised.value)
    assert (type(read), read.status, read.reason) == (PostroadError, grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED")
