"""POST /tokenize: a prompt's token ids, in vLLM's form."""

from __future__ import annotations

from typing import Any

import msgspec

from services.gateway.api.chat import chat_prompt
from services.gateway.api.endpoint import Endpoint, Exchange
from services.gateway.errors import invalid
from services.gateway.gateway import Gateway
from services.gateway.prompts import Prompts, TextPrompts
from services.gateway.validation import decode


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either `prompt` or `messages`. `prompt` may be empty here."""

    model: str | None = None
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None


_BODY = msgspec.json.Decoder(TokenizeRequest)


def _prompt(body: TokenizeRequest) -> Prompts:
    has_messages = body.messages is not msgspec.UNSET
    if has_messages == (body.prompt is not None):
        raise invalid("one of prompt and messages is required", "messages" if has_messages else "prompt")
    if body.prompt is not None:
        return TextPrompts([body.prompt], body.add_special_tokens)
    return chat_prompt(body.messages, body.add_generation_prompt, body.chat_template_kwargs)


class TokenizeEndpoint(Endpoint):
    """Answers from the tokenizer alone, and the model's length from an engine."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "/tokenize", None)

    async def serve(self, exchange: Exchange) -> None:
        """Answers `{"count", "max_model_len", "tokens"}`."""
        body = decode(_BODY, exchange.body)
        prompt = _prompt(body)
        road = self._gateway.road
        model = await self._gateway.model(body.model, road.patience(exchange.context))
        [ids] = await road.token_ids(prompt, exchange.context, exchange.record.times)
        exchange.record.prompt_tokens = len(ids)
        answer = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
        await exchange.reply.json(msgspec.json.encode(answer))
