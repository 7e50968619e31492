"""POST /tokenize and POST /detokenize: token ids of a prompt and text of token ids, in vLLM's form."""

from __future__ import annotations

from typing import Any

import msgspec

from services.gateway.api.chat import chat_prompt
from services.gateway.api.endpoint import Endpoint, Exchange
from services.gateway.api.parameters import TokenId
from services.gateway.api.tool_use import tools_json
from services.gateway.api.tools import ToolList
from services.gateway.errors import invalid, unsupported
from services.gateway.gateway import Gateway
from services.gateway.prompts import Prompts, TextPrompts
from services.gateway.validation import decode


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either `prompt` or `messages`. `prompt` may be empty here."""

    model: str | None = None
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tools: ToolList | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The ids are checked against the vocabulary by the detokenizer."""

    tokens: list[TokenId]
    model: str | None = None
    skip_special_tokens: bool | None = None


_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def _prompt(body: TokenizeRequest) -> Prompts:
    has_messages = body.messages is not msgspec.UNSET
    if has_messages == (body.prompt is not None):
        raise invalid("one of prompt and messages is required", "messages" if has_messages else "prompt")
    if body.prompt is not None:
        return TextPrompts([body.prompt], body.add_special_tokens)
    return chat_prompt(body.messages, body.add_generation_prompt, body.chat_template_kwargs, tools_json(body.tools))


class TokenizeEndpoint(Endpoint):
    """Answers from the tokenizer alone, and the model's length from an engine."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "/tokenize", None)

    async def serve(self, exchange: Exchange) -> None:
        """Answers `{"count", "max_model_len", "tokens"}`."""
        body = decode(_TOKENIZE, exchange.body)
        if body.return_token_strs:
            raise unsupported("return_token_strs", "not supported; leave it out or set it to false")
        prompt = _prompt(body)
        road = self._gateway.road
        model = await self._gateway.model(body.model, road.patience(exchange.context))
        [ids] = (await road.encode(prompt, exchange.context, exchange.record.times)).ids
        exchange.record.prompt_tokens = len(ids)
        answer = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
        await exchange.reply.json(msgspec.json.encode(answer))


class DetokenizeEndpoint(Endpoint):
    """Answers from the detokenizer alone."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "/detokenize", None)

    async def serve(self, exchange: Exchange) -> None:
        """Answers `{"prompt"}`."""
        body = decode(_DETOKENIZE, exchange.body)
        road = self._gateway.road
        await self._gateway.model(body.model, road.patience(exchange.context))
        text = await road.text_of(body.tokens, bool(body.skip_special_tokens), exchange.context)
        await exchange.reply.json(msgspec.json.encode({"prompt": text}))
