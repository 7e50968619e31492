"""Requests as calls of their own: a message per token, for engines that offer no frames and as a yardstick for them."""

from __future__ import annotations

import grpc

from services.common.errors import EngineLost
from services.common.request_context import RequestContext
from services.detokenizer.engine_links import EngineLinks
from services.detokenizer.token_sink import TokenSink, engine_error
from services.pb.postroad.v1 import engine_pb2


class CallTransport:
    """An EngineTransport with one Engine.Generate call per request."""

    def __init__(self) -> None:
        self._links = EngineLinks()
        self._calls = 0

    def open(self, address: str, caller: RequestContext) -> CallRun:
        return CallRun(self, address, caller)

    async def run(
        self, address: str, caller: RequestContext, request: engine_pb2.GenerateRequest, sink: TokenSink
    ) -> None:
        """See `EngineRun.run`."""
        with self._links.use(address) as link:
            call = link.stub.Generate(request, metadata=caller.metadata(), timeout=caller.time_remaining())
            self._calls += 1
            ended = False
            try:
                async for message in call:
                    if message.HasField("prompt_logprobs"):
                        sink.on_prompt_scores(message.prompt_logprobs)
                    if message.HasField("start"):
                        sink.on_start(message.start)
                    scores = message.logprobs if message.HasField("logprobs") else None
                    if message.HasField("end"):
                        ended = True
                        sink.on_end(message.token_ids, message.end, scores)
                    elif message.token_ids:
                        sink.on_tokens(message.token_ids, scores)
            except grpc.aio.AioRpcError as error:
                raise engine_error(error) from error
            finally:
                self._calls -= 1
                call.cancel()
        if not ended:
            raise EngineLost("the engine ended the stream without a terminal event")

    def read_out(self) -> dict[str, int]:
        return {"engine_calls": self._calls}

    async def close(self) -> None:
        await self._links.close()


class CallRun:
    """An EngineRun. Its call is opened with the request."""

    def __init__(self, transport: CallTransport, address: str, caller: RequestContext) -> None:
        self._transport = transport
        self.address = address
        self._caller = caller

    async def run(self, request: engine_pb2.GenerateRequest, sink: TokenSink) -> None:
        await self._transport.run(self.address, self._caller, request, sink)

    def close(self) -> None:
        """Holds nothing."""
