"""What passes between a request's engine call and its text, whichever way the tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import grpc

from services.common.errors import EngineLost, PostroadError, Unavailable, from_rpc
from services.common.request_context import RequestContext
from services.pb.postroad.v1 import common_pb2, engine_pb2


class TokenSink(Protocol):
    """Takes one request's tokens, on the event loop. Never raises: a fault in one request must not reach another.

    After `on_end` or `on_error`, further calls are ignored.
    """

    def on_start(self, start: engine_pb2.StreamStart) -> None:
        """Before the first token."""

    def on_prompt_scores(self, scores: common_pb2.TokenLogprobs) -> None:
        """Log-probabilities of the prompt's next tokens, from the second on, if asked for. All before `on_start`."""

    def on_tokens(self, token_ids: Sequence[int], scores: common_pb2.TokenLogprobs | None = None) -> None:
        """The next tokens, in order, and their log-probabilities if asked for."""

    def on_end(
        self,
        token_ids: Sequence[int],
        end: engine_pb2.StreamEnd,
        scores: common_pb2.TokenLogprobs | None = None,
    ) -> None:
        """The last tokens, if any, their log-probabilities if asked for, and the terminal event."""

    def on_error(self, error: PostroadError) -> None:
        """The request failed."""


class EngineRun(Protocol):
    """One request's way to its engine, open from before the request is known."""

    address: str  # host:port

    async def run(self, request: engine_pb2.GenerateRequest, sink: TokenSink) -> None:
        """Runs the request; to be called once.

        Returns once the engine is done with it. Raises PostroadError if the engine refuses or fails it, EngineLost if
        it cannot be reached. Cancelling this coroutine ends the request in the engine.
        """

    def close(self) -> None:
        """Lets go of the engine, whether there was a request or not. Idempotent."""


class EngineTransport(Protocol):
    """Runs requests on engines."""

    def open(self, address: str, caller: RequestContext) -> EngineRun:
        """A run on the engine at host:port `address`, to be closed. Raises QueueFull."""

    def read_out(self) -> dict[str, int]:
        """Size of every map that has an entry per request, by name."""

    async def close(self) -> None:
        """Closes all connections."""


def engine_error(error: grpc.aio.AioRpcError) -> PostroadError:
    """What a failed engine call says. Without a word from the engine itself, UNAVAILABLE means that it is gone."""
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return EngineLost("the engine was lost: another service answers at its address")
    typed = from_rpc(error)
    return EngineLost(f"the engine was lost: {typed.message}") if type(typed) is Unavailable else typed
