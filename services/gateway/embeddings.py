"""What a request for embeddings has per input: one call of Engine.Embed, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gateway.deltas import StationTimes, Usage
from services.gateway.timings import RunTimes
from services.pb.postroad.v1 import engine_pb2


@dataclass(frozen=True, slots=True)
class EmbeddingRun:
    """One input. `index`: its place among the request's inputs, from 0."""

    index: int
    request: engine_pb2.EmbedRequest
    times: RunTimes = field(default_factory=RunTimes)


@dataclass(frozen=True, slots=True)
class Embedding:
    """An input's embedding, of length 1."""

    vector: Sequence[float]
    usage: Usage
    times: StationTimes
