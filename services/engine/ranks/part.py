"""A rank's part of a model."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.executor.model_runner import RunnerOptions
from services.engine.models.decoder import Decoder
from services.engine.ranks.group import RankGroup
from services.engine.ranks.loaded import LoadedRank


@dataclass(frozen=True, slots=True)
class RankPart:
    """A rank with its weights, before it knows the others."""

    group: RankGroup  # in which `model` meets the others
    model: Decoder
    loaded: LoadedRank  # what the others are told
    options: RunnerOptions  # with `group` as its collectives
