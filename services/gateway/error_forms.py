"""How an error is written: as OpenAI's object, or as Anthropic's below the paths of that API."""

from __future__ import annotations

from typing import Protocol

import msgspec

from services.gateway.errors import ApiError
from services.gateway.sse import event

ANTHROPIC_PATH = "/v1/messages"  # and all below
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorForm(Protocol):
    """Writes the errors of one request."""

    def body(self, error: ApiError) -> bytes:
        """An answer's JSON text."""

    def event(self, error: ApiError) -> bytes:
        """A stream's last event."""


class OpenAIErrors:
    """`{"error": {...}}`."""

    def body(self, error: ApiError) -> bytes:
        """An answer's JSON text."""
        return error.body()

    def event(self, error: ApiError) -> bytes:
        """A stream's last event."""
        return event(error.body())


class AnthropicErrors:
    """`{"type": "error", "error": {...}, "request_id": ...}`. Our code and field stand in the error's `details`."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def body(self, error: ApiError) -> bytes:
        """An answer's JSON text."""
        fields = {
            "type": ANTHROPIC_TYPES[error.status],
            "message": error.message,
            "details": {"error_code": error.code, "param": error.param},
        }
        return msgspec.json.encode({"type": "error", "error": fields, "request_id": self._request_id})

    def event(self, error: ApiError) -> bytes:
        """A stream's last event."""
        return event(self.body(error), "error")


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def error_form(path: str, request_id: str) -> ErrorForm:
    """The form of the errors of a request for `path`."""
    return AnthropicErrors(request_id) if is_anthropic(path) else OpenAIErrors()
