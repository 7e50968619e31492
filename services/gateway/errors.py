"""Errors as an HTTP client sees them: a status and the fields of OpenAI's error object.

The one place that maps the stations' reasons to HTTP statuses.
"""

from __future__ import annotations

import math
import re

import grpc

from services.common import errors

_CLIENT_NAMES = {
    "messages_json": "messages",
    "template_kwargs_json": "chat_template_kwargs",
    "template_kwargs": "chat_template_kwargs",
    "tools_json": "tools",
    "ids": "tokens",
}
_PROMPT_LISTS = ("prompt", "input")  # fields with a prompt per entry
_RETRY_AFTER = 1.0  # seconds; engines restart and queues drain within a few


class ClientDisconnected(Exception):
    """The client is gone; there is nobody to answer."""


class ApiError(Exception):
    """An HTTP status with OpenAI's error fields.

    `param` is the path of the field at fault, for instance `messages[0].role`. `retry_after` is in seconds.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that go with the status."""
        if self.status == 401:
            return [(b"www-authenticate", b"Bearer")]
        if self.retry_after is None:
            return []
        return [(b"retry-after", str(max(1, math.ceil(self.retry_after))).encode())]


def invalid(message: str, param: str | None = None) -> ApiError:
    """400: the request is at fault."""
    return ApiError(400, message, param=param, code="invalid_value")


def unsupported(param: str, message: str) -> ApiError:
    """400: a feature that this server does not have, refused by name."""
    return ApiError(400, f"{param}: {message}", param=param, code="unsupported_parameter")


def model_not_found(name: str, served: str) -> ApiError:
    """404: the request names another model than the one served."""
    message = f"model {name!r} does not exist; this server serves {served!r}"
    return ApiError(404, message, param="model", code="model_not_found")


def body_too_large(limit: int) -> ApiError:
    """413: the body is over --max-body-bytes."""
    return ApiError(413, f"the request body is larger than the limit of {limit} bytes", code="too_large")


def _client_message(message: str, prompt_field: str | None) -> str:
    """A station's message begins with the field at fault, where there is one: here in the words of the HTTP API."""
    name = re.match(r"\w*", message)
    found = _client_param(name[0] if name else None, prompt_field)
    return message if name is None or found is None else found + message[name.end() :]


def _client_param(param: str | None, prompt_field: str | None) -> str | None:
    """A station's field path in the words of the HTTP API."""
    if param is None:
        return None
    name = re.split(r"[.\[]", param, maxsplit=1)[0]
    if name in ("prompt_ids", "texts"):
        field = prompt_field or "prompt"
        return param.replace(name, field, 1) if field in _PROMPT_LISTS else field
    return param.replace(name, _CLIENT_NAMES.get(name, name), 1)


def from_station(error: errors.PostroadError, prompt_field: str | None = None) -> ApiError:
    """A station's error in HTTP form. `prompt_field` is what this endpoint calls its prompt."""
    param, code = _client_param(error.param, prompt_field), error.reason.lower()
    match error:
        case errors.ContextLengthExceeded():
            return ApiError(400, error.message, param=param or prompt_field, code=code)
        case errors.InvalidArgument():
            message = _client_message(error.message, prompt_field) if param else error.message
            return ApiError(400, message, param=param, code="invalid_value")
        case errors.TooLarge():
            return ApiError(413, error.message, param=param or prompt_field, code=code)
        case errors.QueueFull():
            return ApiError(429, error.message, kind="rate_limit_error", code=code, retry_after=_RETRY_AFTER)
        case errors.DeadlineExceeded():
            return ApiError(504, error.message, kind="server_error", code=code)
    if is_transient(error):
        return ApiError(503, error.message, kind="server_error", code=code, retry_after=_RETRY_AFTER)
    return ApiError(500, error.message, kind="server_error", code=code)


def rename_field(error: errors.PostroadError, old: str, new: str) -> None:
    """Where a station's error is about the field `old`, or a part of it, calls it `new`."""
    if error.param is not None and error.param.startswith(old):
        error.param = new + error.param.removeprefix(old)
        if error.message.startswith(old):
            error.message = new + error.message.removeprefix(old)


def is_transient(error: errors.PostroadError) -> bool:
    """Whether the same request may succeed when sent again."""
    transient = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.FAILED_PRECONDITION)
    return error.status in transient
