"""How an error is written: as OpenAI's object, or as Anthropic's below the paths of that API."""

from __future__ import annotations

from typing import Literal, Protocol, TypedDict

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


class ErrorFields(TypedDict):
    """`param` is the path of the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """An error in OpenAI's form."""

    error: ErrorFields


class AnthropicErrorDetails(TypedDict):
    """Our code, and the path of the field at fault."""

    error_code: str | None
    param: str | None


class AnthropicErrorFields(TypedDict):
    """`type` goes with the status."""

    type: str
    message: str
    details: AnthropicErrorDetails


class AnthropicErrorBody(TypedDict):
    """An error in Anthropic's form."""

    type: Literal["error"]
    error: AnthropicErrorFields
    request_id: str


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
        fields: ErrorBody = {
            "error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
        }
        return msgspec.json.encode(fields)

    def event(self, error: ApiError) -> bytes:
        """A stream's last event."""
        return event(self.body(error))


class AnthropicErrors:
    """`{"type": "error", "error": {...}, "request_id": ...}`. Our code and field stand in the error's `details`."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def body(self, error: ApiError) -> bytes:
        """An answer's JSON text."""
        fields: AnthropicErrorBody = {
            "type": "error",
            "error": {
                "type": ANTHROPIC_TYPES[error.status],
                "message": error.message,
                "details": {"error_code": error.code, "param": error.param},
            },
            "request_id": self._request_id,
        }
        return msgspec.json.encode(fields)

    def event(self, error: ApiError) -> bytes:
        """A stream's last event."""
        return event(self.body(error), "error")


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def error_form(path: str, request_id: str) -> ErrorForm:
    """The form of the errors of a request for `path`."""
    return AnthropicErrors(request_id) if is_anthropic(path) else OpenAIErrors()
