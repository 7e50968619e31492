"""POST /tokenize and POST /detokenize: token ids of a prompt and text of token ids, in vLLM's form."""

from __future__ import annotations

from typing import Any, ClassVar, TypedDict

import msgspec

from services.gateway.api.chat import Messages, chat_prompt
from services.gateway.api.endpoint import Endpoint, Exchange
from services.gateway.api.parameters import OffValues, TokenId
from services.gateway.api.tools import ToolList, prompt_tools
from services.gateway.errors import invalid
from services.gateway.gateway import Gateway
from services.gateway.prompts import Prompts, TextPrompts
from services.gateway.validation import decode, refuse_later_features


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either `prompt` or `messages`. `prompt` may be empty here."""

    off_values: ClassVar[OffValues] = {
        "return_token_strs": (False,),
        "continue_final_message": (False,),
        "chat_template": (),
    }

    model: str | None = None
    messages: Messages | msgspec.UnsetType = msgspec.UNSET
    tools: ToolList | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: Any = None
    continue_final_message: Any = None
    chat_template: Any = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The ids are checked against the vocabulary by the detokenizer."""

    tokens: list[TokenId]
    model: str | None = None
    skip_special_tokens: bool | None = None


class Tokens(TypedDict):
    """What /tokenize answers. `max_model_len` is the model's length in tokens."""

    count: int
    max_model_len: int
    tokens: list[int]


class Text(TypedDict):
    """What /detokenize answers."""

    prompt: str


_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def _prompt(body: TokenizeRequest) -> Prompts:
    tools = prompt_tools(body.tools)
    if body.messages is msgspec.UNSET:
        if body.prompt is None:
            raise invalid("one of prompt and messages is required", "prompt")
        return TextPrompts([body.prompt], body.add_special_tokens)
    if body.prompt is not None:
        raise invalid("one of prompt and messages is required", "messages")
    return chat_prompt(body.messages, body.add_generation_prompt, body.chat_template_kwargs, tools)


class TokenizeEndpoint(Endpoint):
    """Answers from the tokenizer alone, and the model's length from an engine."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "/tokenize", None)

    async def serve(self, exchange: Exchange) -> None:
        """Answers `{"count", "max_model_len", "tokens"}`."""
        body = decode(_TOKENIZE, exchange.body)
        refuse_later_features(body, body.off_values)
        prompt = _prompt(body)
        road = self._gateway.road
        model = await self._gateway.model(body.model, road.patience(exchange.context))
        [ids] = (await road.encode(prompt, exchange.context, exchange.record.times)).ids
        exchange.record.prompt_tokens = len(ids)
        answer: Tokens = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
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
        answer: Text = {"prompt": text}
        await exchange.reply.json(msgspec.json.encode(answer))
