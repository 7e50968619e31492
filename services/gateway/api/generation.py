"""The endpoint of chat and text completions: one request's way from its body to its last byte."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from services.common.errors import Internal, PostroadError
from services.gateway import wire
from services.gateway.api.answers import Answer, AnswerHead, Dialect
from services.gateway.api.endpoint import Endpoint, Exchange
from services.gateway.api.parameters import GenerationParameters
from services.gateway.deltas import Delta
from services.gateway.errors import invalid
from services.gateway.gateway import Gateway


class GenerationEndpoint(Endpoint):
    """Serves one dialect."""

    def __init__(self, gateway: Gateway, dialect: Dialect) -> None:
        super().__init__(gateway, dialect.path, dialect.prompt_field)
        self._dialect = dialect

    async def serve(self, exchange: Exchange) -> None:
        """Status and headers are sent with the first delta, so that whatever fails before is a proper HTTP error."""
        context, record = exchange.context, exchange.record
        body, prompt = self._dialect.parse(exchange.body)
        record.stream = bool(body.stream)
        model = await self._gateway.model(body.model, self._gateway.road.patience(context))
        prompt_ids = await self._gateway.road.token_ids(prompt, context, record.times)
        record.prompt_tokens = len(prompt_ids)
        if not prompt_ids:
            field = self._dialect.prompt_field
            raise invalid(f"{field} must not be empty: it has no tokens", field)
        head = AnswerHead(f"{self._dialect.id_prefix}{record.request_id}", int(time.time()), model.name)
        answer = self._dialect.answer(head, body)
        request = wire.generate_request(body, prompt_ids)
        try:
            async with aclosing(self._gateway.road.generate(request, context, record.times)) as deltas:
                send = self._send_stream if body.stream else self._send_whole
                await send(exchange, body, answer, deltas)
        except PostroadError as error:
            if error.param == "max_tokens":
                error.param = body.token_limit_field
            raise

    async def _send_stream(
        self, exchange: Exchange, body: GenerationParameters, answer: Answer, deltas: AsyncGenerator[Delta, None]
    ) -> None:
        reply, record = exchange.reply, exchange.record
        async for delta in deltas:
            events = answer.text(delta.text) if delta.text else b""
            if reply.status is None:
                await reply.open_stream([(b"server-timing", record.times.server_timing())])
                events = answer.opening() + events
            if delta.ending is not None:
                record.ending = delta.ending
                timings = record.times.as_json() if body.timings else None
                await reply.close(events + answer.finish(delta.ending, timings))
            elif events:
                await reply.write(events)

    async def _send_whole(
        self, exchange: Exchange, body: GenerationParameters, answer: Answer, deltas: AsyncGenerator[Delta, None]
    ) -> None:
        times = exchange.record.times
        texts: list[str] = []
        async for delta in deltas:
            texts.append(delta.text)
            if delta.ending is not None:
                exchange.record.ending = delta.ending
        ending = exchange.record.ending
        if ending is None:
            raise Internal("the request has no ending")
        answer_json = answer.whole("".join(texts), ending, times.as_json() if body.timings else None)
        await exchange.reply.json(answer_json, headers=[(b"server-timing", times.server_timing())])
