"""The endpoints that generate: one request's way from its body to its last byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from functools import partial

from services.common.errors import PostroadError
from services.gateway import wire
from services.gateway.api.answers import Answer, AnswerHead, Dialect, Parsed, Reading, Summary
from services.gateway.api.choices import Choices, WholeChoice
from services.gateway.api.endpoint import Endpoint, Exchange
from services.gateway.api.parameters import MAX_CHOICES, GenerationParameters
from services.gateway.api.prompt_field import require_tokens
from services.gateway.calls_ahead import CallsAhead
from services.gateway.deltas import Delta
from services.gateway.errors import invalid, rename_field
from services.gateway.forms import OutputForm
from services.gateway.gateway import Gateway
from services.gateway.runs import Run


class GenerationEndpoint(Endpoint):
    """Serves one dialect."""

    def __init__(self, gateway: Gateway, dialect: Dialect) -> None:
        super().__init__(gateway, dialect.path, dialect.prompt_field)
        self._dialect = dialect

    async def serve(self, exchange: Exchange) -> None:
        """Status and headers are sent with the first delta, so that whatever fails before is a proper HTTP error."""
        with closing(self._gateway.road.calls_ahead(exchange.context)) as ahead:
            if self._dialect.renders_chat:
                ahead.render.open()
                await asyncio.sleep(0)  # the call goes out, and the tokenizer gets ready for what is read here
            await self._serve(exchange, self._dialect.parse(exchange.body), ahead)

    async def _serve(self, exchange: Exchange, parsed: Parsed, ahead: CallsAhead) -> None:
        context, record, road = exchange.context, exchange.record, self._gateway.road
        body, prompts, form = parsed.body, parsed.prompts, parsed.form
        record.stream = bool(body.stream)
        if exchange.api_key is not None:
            body.cache_salt = exchange.api_key.cache_salt(body.cache_salt)
        if prompts.count * body.choices_per_prompt > MAX_CHOICES:
            name = body.choices_field
            raise invalid(f"{name} must be at most {MAX_CHOICES // prompts.count} with {prompts.count} prompts", name)
        model = await self._gateway.model(body.model, road.patience(context))
        try:
            encoded = await road.encode(prompts, context, record.times, ahead)
            prompt_tokens = record.prompt_tokens = sum(map(len, encoded.ids))
            body.limit_to(model.max_model_len - prompt_tokens)
            reading = parsed.reading(encoded.formats)
            runs = self._runs(body, encoded.ids, form, reading)
            record.times.runs = [run.times for run in runs]
            answer_id = self._dialect.id_prefix + record.request_id
            head = AnswerHead(answer_id, int(time.time()), model.name, prompt_tokens)
            answer = self._dialect.answer(head, body)
            choices = Choices(runs, reading.make_reader)
            async with aclosing(road.generate_all(runs, context, ahead)) as deltas:
                send = self._send_stream if body.stream else self._send_whole
                await send(exchange, body, answer, choices, deltas)
        except PostroadError as error:
            _name_client_fields(error, parsed)
            raise

    def _runs(
        self, body: GenerationParameters, prompt_ids: list[list[int]], form: OutputForm | None, reading: Reading
    ) -> list[Run]:
        field, n = self._dialect.prompt_field, body.choices_per_prompt
        require_tokens(prompt_ids, field)
        request = partial(
            wire.generate_request,
            body,
            form=form,
            keep_special_tokens=reading.keep_special_tokens,
            token_offsets=reading.token_offsets,
        )
        return [
            Run(prompt * n + repeat, prompt, request(ids, repeat))
            for prompt, ids in enumerate(prompt_ids)
            for repeat in range(n)
        ]

    async def _send_stream(
        self,
        exchange: Exchange,
        body: GenerationParameters,
        answer: Answer,
        choices: Choices,
        deltas: AsyncGenerator[Delta, None],
    ) -> None:
        reply, record = exchange.reply, exchange.record
        async for delta in deltas:
            update = choices.update(delta)
            if body.continuous_usage:
                update.usage = choices.usage_so_far()
            is_first = reply.status is None
            if is_first:
                await reply.open_stream([(b"server-timing", record.times.server_timing())], answer.failure)
            if update.finish_reason is not None and choices.are_finished:
                await reply.close(answer.events(update, self._summary(exchange, body, choices)))
            elif events := answer.events(update):
                await reply.write(events)
            if is_first:
                await asyncio.sleep(0)  # what was written leaves before the next delta is asked for

    async def _send_whole(
        self,
        exchange: Exchange,
        body: GenerationParameters,
        answer: Answer,
        choices: Choices,
        deltas: AsyncGenerator[Delta, None],
    ) -> None:
        wholes: dict[int, WholeChoice] = {}
        async for delta in deltas:
            update = choices.update(delta)
            wholes.setdefault(update.choice, WholeChoice(update.choice)).add(update)
        summary = self._summary(exchange, body, choices)
        answer_json = answer.whole([wholes[choice] for choice in sorted(wholes)], summary)
        timing = (b"server-timing", exchange.record.times.server_timing())
        await exchange.reply.json(answer_json, headers=[timing])

    def _summary(self, exchange: Exchange, body: GenerationParameters, choices: Choices) -> Summary:
        """Of a request whose choices are finished; the record has them from here on."""
        record = exchange.record
        record.endings, record.usage = choices.endings, choices.usage()
        return Summary(record.usage, record.times.as_json() if body.timings else None)


def _name_client_fields(error: PostroadError, parsed: Parsed) -> None:
    """Where a station's error is about a field that clients know by another name, takes that one."""
    if error.param == "max_tokens":
        error.param = parsed.body.token_limit_field
    elif parsed.form is not None and (error.param or "").startswith("structured_output"):
        error.param = parsed.form.client_param(error.param or "")
        error.message = f"{error.param}: {error.message}"
    else:
        for old, new in parsed.renamed.items():
            rename_field(error, old, new)
