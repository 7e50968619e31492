"""What every endpoint that does work has around it: a scope, one answer, one report."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from services.common.errors import Internal, PostroadError
from services.common.request_context import TRACEPARENT_KEY, RequestContext, accept_traceparent
from services.gateway.admission import api_key_of
from services.gateway.api_keys import ApiKey
from services.gateway.body import read_body
from services.gateway.errors import ApiError, ClientDisconnected, from_station, invalid
from services.gateway.gateway import Gateway
from services.gateway.middleware import error_form_of, request_id_of
from services.gateway.record import CLIENT_CLOSED, RequestRecord
from services.gateway.reply import Reply

_TIMEOUT_HEADER = b"x-request-timeout"
_ERROR_SEND_TIMEOUT = 5.0  # seconds for an error to leave; a client that reads nothing would hold it for ever


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request being served: where its answer goes, its context for the stations, and its record."""

    body: bytes
    api_key: ApiKey | None
    reply: Reply
    context: RequestContext
    record: RequestRecord


class Endpoint(ABC):
    """An ASGI application for one route. `prompt_field` is its name for the prompt, in errors."""

    def __init__(self, gateway: Gateway, path: str, prompt_field: str | None) -> None:
        self._gateway = gateway
        self._path = path
        self._prompt_field = prompt_field

    @abstractmethod
    async def serve(self, exchange: Exchange) -> None:
        """Answers the request. Errors that it raises are answered by the caller."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send, error_form_of(scope))
        record = self._open_record(scope)
        try:
            await self._serve_in_scope(scope, receive, reply, record)
            record.answered = True
        except ClientDisconnected:
            pass
        except (ApiError, PostroadError) as error:
            await self._fail(error, reply, record)
        except Exception:
            self._gateway.log.exception("unexpected error", request_id=record.request_id)
            await self._fail(Internal("internal error"), reply, record)
        finally:
            record.times.end = time.monotonic_ns()
            # The last bytes leave when this turn of the event loop is over; the client shall not wait for the report.
            status = reply.status or CLIENT_CLOSED
            asyncio.get_running_loop().call_soon(self._gateway.reporter.report, record, status)

    def _open_record(self, scope: Scope) -> RequestRecord:
        headers = dict(scope["headers"])
        given = headers.get(TRACEPARENT_KEY.encode(), b"").decode("latin-1")
        span = self._gateway.tracing.open("request", accept_traceparent(given))
        key = api_key_of(scope)
        return RequestRecord(request_id_of(scope), self._path, span, None if key is None else key.name)

    async def _serve_in_scope(self, scope: Scope, receive: Receive, reply: Reply, record: RequestRecord) -> None:
        settings = self._gateway.settings
        deadline = record.times.arrival / 1e9 + min(settings.request_timeout, _time_limit(scope))
        with self._gateway.live.enter(), self._gateway.scopes.open(deadline) as request_scope:
            body = await read_body(scope, receive, settings.max_body_bytes)
            request_scope.watch_client(receive)
            context = RequestContext(record.request_id, record.span.traceparent, deadline)
            await self.serve(Exchange(body, api_key_of(scope), reply, context, record))

    async def _fail(self, error: ApiError | PostroadError, reply: Reply, record: RequestRecord) -> None:
        api_error = error if isinstance(error, ApiError) else from_station(error, self._prompt_field)
        own = api_error.code or api_error.kind
        record.reason = error.reason.lower() if isinstance(error, PostroadError) else own
        try:
            async with asyncio.timeout(_ERROR_SEND_TIMEOUT):
                await reply.error(api_error)
        except TimeoutError:
            self._gateway.log.warning("the client does not read", request_id=record.request_id)


def _time_limit(scope: Scope) -> float:
    """Seconds that the client gives its request; ApiError 400 for what is no such number."""
    for name, value in scope["headers"]:
        if name == _TIMEOUT_HEADER:
            try:
                seconds = math.nan if b"_" in value else float(value)  # Python alone takes 1_000 as a number
            except ValueError:
                seconds = math.nan
            if not seconds > 0:
                raise invalid("x-request-timeout must be a number of seconds greater than 0", "x-request-timeout")
            return seconds
    return math.inf
