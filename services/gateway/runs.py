"""The runs of a request: each of its choices is one call of Detokenizer.Generate."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.gateway.timings import RunTimes
from services.pb.postroad.v1 import detokenizer_pb2


@dataclass(frozen=True, slots=True)
class Run:
    """What becomes one choice. Choices are numbered prompt by prompt: n of the first prompt, n of the second, …"""

    choice: int
    prompt: int  # which of the request's prompts it continues, from 0
    request: detokenizer_pb2.GenerateTextRequest
    times: RunTimes = field(default_factory=RunTimes)
