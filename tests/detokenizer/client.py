"""A caller of Detokenizer.Generate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from services.common.errors import from_rpc
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2, engine_pb2


@dataclass
class Answer:
    """What came of one request."""

    deltas: list[detokenizer_pb2.TextDelta] = field(default_factory=list)

    def take(self, delta: detokenizer_pb2.TextDelta) -> None:
        assert not self.deltas or not self.deltas[-1].HasField("end"), "a message after the end"
        self.deltas.append(delta)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def end(self) -> detokenizer_pb2.TextEnd:
        assert self.deltas[-1].HasField("end")
        return self.deltas[-1].end

    @property
    def num_tokens(self) -> int:
        return sum(delta.num_tokens for delta in self.deltas)


def request(
    prompt: Iterable[int] = (1, 2, 3), *, stop: Iterable[str] = (), params: Any = None, **others: Any
) -> detokenizer_pb2.GenerateTextRequest:
    """`params` are StopParams' fields."""
    inner = engine_pb2.GenerateRequest(prompt_ids=prompt, stop=common_pb2.StopParams(**(params or {})))
    return detokenizer_pb2.GenerateTextRequest(request=inner, stop=stop, **others)


async def generate(stub: Any, message: detokenizer_pb2.GenerateTextRequest, **call: Any) -> Answer:
    """Runs a request to its end. Raises the typed error of its status."""
    return await rest_of(stub.Generate(message, **call))


async def rest_of(call: Any) -> Answer:
    """What a call still has to say. Raises the typed error of its status."""
    answer = Answer()
    try:
        while (delta := await call.read()) is not grpc.aio.EOF:
            answer.take(delta)
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
    return answer
