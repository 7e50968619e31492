"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Literal, TypedDict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.errors import model_not_found
from services.gateway.gateway import DEFAULT_MODEL, Gateway
from services.gateway.replicas import ModelCard


class Model(TypedDict):
    """A model in OpenAI's form. `created` is Unix time in seconds; `max_model_len` counts prompt and output, tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["postroad"]
    max_model_len: int


class ModelList(TypedDict):
    """The served models; none until an engine was seen."""

    object: Literal["list"]
    data: list[Model]


def model_fields(card: ModelCard) -> Model:
    """What is said of the model."""
    return {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "postroad",
        "max_model_len": card.max_model_len,
    }


class ModelsEndpoints:
    """The list is empty until an engine was seen."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list(self, _request: Request) -> Response:
        """All served models: one."""
        card = self._gateway.stations.engines.card
        data = [] if card is None else [model_fields(card)]
        models: ModelList = {"object": "list", "data": data}
        return _json(models)

    async def get(self, request: Request) -> Response:
        """One model by name; ApiError 404 for another one."""
        card, name = self._gateway.stations.engines.card, request.path_params["model"]
        if card is None or name not in (DEFAULT_MODEL, card.name):
            raise model_not_found(name, card.name if card else "no model yet")
        return _json(model_fields(card))


def _json(value: Model | ModelList) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
