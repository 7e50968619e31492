"""Between the gateway's own types and the stations' messages: the only module that makes or reads their fields."""

from __future__ import annotations

from services.common.errors import Internal
from services.gateway.api.parameters import GenerationParameters
from services.gateway.deltas import Delta, Ending, EngineStart, StationTimes, Usage
from services.gateway.embeddings import Embedding
from services.gateway.forms import OutputForm
from services.gateway.prompts import ChatFormats, ChatPrompt, EncodedPrompts, TextPrompts
from services.gateway.scored import Scored, ScoredToken, TokenText, TopToken
from services.pb.postroad.v1 import common_pb2, detokenizer_pb2, engine_pb2, tokenizer_pb2

_UINT64_MASK = 2**64 - 1
_LEAST_FLOAT32 = 2.0**-126  # of those in full precision
POOLINGS = {"last": engine_pb2.POOLING_LAST, "mean": engine_pb2.POOLING_MEAN}
_FINISH_REASONS = {common_pb2.FINISH_REASON_STOP: "stop", common_pb2.FINISH_REASON_LENGTH: "length"}


def encode_request(prompts: TextPrompts) -> tokenizer_pb2.EncodeRequest:
    """The message for Tokenizer.Encode."""
    return tokenizer_pb2.EncodeRequest(texts=prompts.texts, add_special_tokens=prompts.add_special_tokens)


def render_request(prompt: ChatPrompt) -> tokenizer_pb2.RenderChatRequest:
    """The message for Tokenizer.RenderChat."""
    return tokenizer_pb2.RenderChatRequest(
        messages_json=prompt.messages_json,
        add_generation_prompt=prompt.add_generation_prompt,
        template_kwargs_json=prompt.template_kwargs_json,
        tools_json=prompt.tools_json,
    )


def read_rendered(message: tokenizer_pb2.RenderChatResponse) -> EncodedPrompts:
    """A message of Tokenizer.RenderChat."""
    formats = ChatFormats(message.tool_call_format, message.reasoning_format, message.reasoning_open)
    return EncodedPrompts([list(message.ids)], formats)


def decode_request(ids: list[int], skip_special_tokens: bool) -> detokenizer_pb2.DecodeRequest:
    """The message for Detokenizer.Decode."""
    return detokenizer_pb2.DecodeRequest(ids=ids, skip_special_tokens=skip_special_tokens)


def embed_request(
    prompt_ids: list[int], pooling: str | None, cache_salt: str | None, priority: int | None
) -> engine_pb2.EmbedRequest:
    """The message for Engine.Embed. `pooling`: one of POOLINGS."""
    return engine_pb2.EmbedRequest(
        prompt_ids=prompt_ids,
        pooling=None if pooling is None else POOLINGS[pooling],
        cache_salt=cache_salt or "",
        priority=priority or 0,
    )


def read_embedding(message: engine_pb2.EmbedResponse) -> Embedding:
    """A message of Engine.Embed. No detokenizer is on the way: what the engine does not account for is one hop."""
    times = message.timings
    return Embedding(
        vector=message.embedding,
        usage=_read_usage(message.usage),
        times=StationTimes(
            schedule_wait_us=times.schedule_wait_us,
            prefill_us=times.prefill_us,
            decode_us=0,
            detokenize_us=0,
            engine_hop_us=0,
            detokenizer_total_us=times.schedule_wait_us + times.prefill_us,
            preemptions=times.preemptions,
        ),
    )


def generate_request(
    body: GenerationParameters,
    prompt_ids: list[int],
    repeat: int,
    form: OutputForm | None = None,
    *,
    keep_special_tokens: bool = False,
    token_offsets: bool = False,
) -> detokenizer_pb2.GenerateTextRequest:
    """The message for Detokenizer.Generate. What the client left out stays unset: the stations have the defaults.

    `repeat`: which of the prompt's n choices it is for, from 0. Each has a seed of its own, the next number.
    `keep_special_tokens`: in the text, whatever the body says. `token_offsets`: asks where each token's text begins.
    """
    return detokenizer_pb2.GenerateTextRequest(
        request=engine_pb2.GenerateRequest(
            prompt_ids=prompt_ids,
            sampling=_sampling(body, repeat),
            stop=common_pb2.StopParams(
                max_tokens=body.token_limit,
                min_tokens=body.min_tokens,
                stop_token_ids=body.stop_token_ids or (),
                ignore_eos=body.ignore_eos,
            ),
            cache_salt=body.cache_salt or "",
            priority=body.priority or 0,
            structured_output=None if form is None else _structured_output(form),
            num_speculative_tokens=body.num_speculative_tokens,
            logprobs=body.num_logprobs,
            prompt_logprobs=body.num_prompt_logprobs,
        ),
        stop=body.stops,
        skip_special_tokens=False if keep_special_tokens else body.skip_special_tokens,
        include_stop_str_in_output=body.include_stop_str_in_output,
        echo=body.echoes_prompt or None,
        report_token_offsets=token_offsets,
    )


def _structured_output(form: OutputForm) -> common_pb2.StructuredOutput:
    match form.kind:
        case "json_object":
            return common_pb2.StructuredOutput(json_object=True)
        case "choice":
            return common_pb2.StructuredOutput(choice=common_pb2.StructuredChoices(texts=form.choices))
        case "json_schema":
            return common_pb2.StructuredOutput(json_schema=form.text)
        case "regex":
            return common_pb2.StructuredOutput(regex=form.text)
        case "grammar":
            return common_pb2.StructuredOutput(grammar=form.text)


def _sampling(body: GenerationParameters, repeat: int) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        temperature=body.temperature,
        # What float32 would round to 0 means the same as its least number: the most probable token alone.
        top_p=None if body.top_p is None else max(_LEAST_FLOAT32, body.top_p),
        top_k=None if body.top_k is None else max(0, body.top_k),
        min_p=body.min_p,
        # OpenAI's seeds are signed
        seed=None if body.seed is None else (body.seed + repeat) & _UINT64_MASK,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias or {},
    )


def is_scored(request: detokenizer_pb2.GenerateTextRequest) -> bool:
    """Whether its deltas have log-probabilities."""
    return request.request.HasField("logprobs") or request.request.HasField("prompt_logprobs")


def read_delta(message: detokenizer_pb2.TextDelta, choice: int, *, scored: bool = False) -> Delta:
    """A message of Detokenizer.Generate. Raises Internal for an end that is none."""
    start = message.start if message.HasField("start") else None
    return Delta(
        choice=choice,
        text=message.text,
        tokens=message.num_tokens,
        start=None if start is None else _read_start(start),
        ending=_read_end(message.end) if message.HasField("end") else None,
        scored=_read_scored(message) if scored else None,
        token_offsets=message.token_offsets,
    )


def _read_start(start: engine_pb2.StreamStart) -> EngineStart:
    return EngineStart(start.schedule_wait_us, start.prefill_us, start.cached_tokens)


def _read_scored(message: detokenizer_pb2.TextDelta) -> Scored:
    return Scored([_read_token(token) for token in message.tokens], [_read_token(t) for t in message.prompt_tokens])


def _read_token(message: detokenizer_pb2.TextToken) -> ScoredToken:
    return ScoredToken(
        TokenText(message.id, message.token, message.bytes),
        message.logprob if message.HasField("logprob") else None,
        message.rank,
        message.text_offset,
        [TopToken(TokenText(top.id, top.token, top.bytes), top.logprob) for top in message.top],
    )


def _read_end(end: detokenizer_pb2.TextEnd) -> Ending:
    reason = _FINISH_REASONS.get(end.finish_reason)
    if reason is None:
        raise Internal("the request ended without a finish reason")
    times = end.timings
    return Ending(
        finish_reason=reason,
        usage=_read_usage(end.usage),
        times=StationTimes(
            schedule_wait_us=times.schedule_wait_us,
            prefill_us=times.prefill_us,
            decode_us=times.decode_us,
            detokenize_us=times.detokenize_us,
            engine_hop_us=times.engine_hop_us,
            detokenizer_total_us=times.detokenizer_total_us,
            preemptions=times.preemptions,
        ),
        stop_string=end.stop_string if end.HasField("stop_string") else None,
        cumulative_logprob=end.cumulative_logprob if end.HasField("cumulative_logprob") else None,
    )


def _read_usage(usage: common_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
