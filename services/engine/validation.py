"""A request from the wire → a Sequence for the scheduler. Every field is checked here and nowhere else."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from services.common.errors import ContextLengthExceeded, InvalidArgument
from services.engine.grammar.form import OutputForm
from services.engine.plan import SamplingParams, StopParams
from services.engine.scheduler.pooling import Pooler, Pooling
from services.engine.scheduler.sequence import Sequence
from services.engine.scheduler.speculation import Speculation
from services.pb.postroad.v1 import common_pb2, engine_pb2

# 0.01 as the message carries it, in float32. Logits divided by much less would leave the range of float32.
MIN_REPETITION_PENALTY = 0.009999999776482582
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_CACHE_SALT_BYTES = 256
MAX_PRIORITY = 100
MAX_LOGPROBS = 20
MAX_FORM_BYTES = 256 * 1024
MAX_SPECULATIVE_TOKENS = 16

_POOLINGS = {
    engine_pb2.POOLING_UNSPECIFIED: Pooling.LAST,
    engine_pb2.POOLING_LAST: Pooling.LAST,
    engine_pb2.POOLING_MEAN: Pooling.MEAN,
}


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request must fit, and what it gets where it does not say."""

    max_model_len: int  # prompt and output together, tokens
    vocab_size: int
    eos_token_ids: frozenset[int]
    num_speculative_tokens: int = 0  # where a request does not say


def sequence_from_request(
    request: engine_pb2.GenerateRequest, limits: ModelLimits, sequence_id: int, arrival_ns: int
) -> Sequence:
    """Raises InvalidArgument or ContextLengthExceeded; their `param` is the name of the field in the .proto."""
    prompt_ids = _checked_prompt(request, limits)
    _check_range("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    _check_range("prompt_logprobs", request.prompt_logprobs, 0, MAX_LOGPROBS)
    max_guesses = limits.num_speculative_tokens
    if request.HasField("num_speculative_tokens"):
        max_guesses = request.num_speculative_tokens
        _check_range("num_speculative_tokens", max_guesses, 0, MAX_SPECULATIVE_TOKENS)
    return Sequence(
        sequence_id=sequence_id,
        prompt_ids=prompt_ids,
        sampling=_sampling_params(request.sampling, limits),
        stop=_stop_params(request.stop, len(prompt_ids), limits),
        arrival_ns=arrival_ns,
        cache_salt=request.cache_salt,
        priority=request.priority,
        logprobs=request.logprobs if request.HasField("logprobs") else None,
        prompt_logprobs=request.prompt_logprobs if request.HasField("prompt_logprobs") else None,
        speculation=Speculation(max_guesses) if max_guesses else None,
    )


def sequence_to_embed(
    request: engine_pb2.EmbedRequest, limits: ModelLimits, sequence_id: int, arrival_ns: int
) -> Sequence:
    """Raises as `sequence_from_request` does."""
    prompt_ids = _checked_prompt(request, limits)
    pooling = _POOLINGS.get(request.pooling)
    if pooling is None:
        raise InvalidArgument(f"pooling must be POOLING_LAST or POOLING_MEAN, not {request.pooling}", "pooling")
    if len(prompt_ids) > limits.max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt has "
            f"{len(prompt_ids)} tokens. Please reduce the length of the prompt.",
            "prompt_ids",
        )
    return Sequence(
        sequence_id=sequence_id,
        prompt_ids=prompt_ids,
        sampling=SamplingParams(),
        stop=StopParams(max_tokens=0),
        arrival_ns=arrival_ns,
        cache_salt=request.cache_salt,
        priority=request.priority,
        pooler=Pooler(pooling, len(prompt_ids)),
    )


def output_form(request: engine_pb2.GenerateRequest) -> OutputForm | None:
    """The form that the output must have; None where it is free. Raises InvalidArgument."""
    if not request.HasField("structured_output"):
        return None
    given = request.structured_output
    kind = given.WhichOneof("form")
    match kind:
        case "json_object" if given.json_object:
            return OutputForm("json_object", "")
        case "json_schema" | "regex" | "grammar":
            form = OutputForm(kind, getattr(given, kind))
        case "choice" if given.choice.texts:
            form = OutputForm("choice", json.dumps(list(given.choice.texts), ensure_ascii=False))
        case None:
            raise InvalidArgument("structured_output names no form", "structured_output")
        case _:
            reason = "must be true" if kind == "json_object" else "needs at least one text"
            raise InvalidArgument(f"{kind} {reason}", f"structured_output.{kind}")
    num_bytes = len(form.text.encode())
    if num_bytes > MAX_FORM_BYTES:
        raise InvalidArgument(f"{kind} has {num_bytes} bytes; at most {MAX_FORM_BYTES} are allowed", form.param)
    return form


def _checked_prompt(request: engine_pb2.GenerateRequest | engine_pb2.EmbedRequest, limits: ModelLimits) -> list[int]:
    """The prompt, where it and what places it among others are in range."""
    prompt_ids = list(request.prompt_ids)
    if not prompt_ids:
        raise InvalidArgument("the prompt is empty: at least one token id is needed", "prompt_ids")
    if max(prompt_ids) >= limits.vocab_size:
        raise _out_of_vocabulary("prompt_ids", max(prompt_ids), limits)
    salt_bytes = len(request.cache_salt.encode())
    if salt_bytes > MAX_CACHE_SALT_BYTES:
        raise InvalidArgument(
            f"cache_salt has {salt_bytes} bytes; at most {MAX_CACHE_SALT_BYTES} are allowed", "cache_salt"
        )
    _check_range("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
    return prompt_ids


def _sampling_params(given: common_pb2.SamplingParams, limits: ModelLimits) -> SamplingParams:
    params = SamplingParams(
        temperature=given.temperature if given.HasField("temperature") else 1.0,
        top_p=given.top_p if given.HasField("top_p") else 1.0,
        top_k=given.top_k if given.top_k < limits.vocab_size else 0,
        min_p=given.min_p,
        seed=given.seed if given.HasField("seed") else random.getrandbits(64),
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repetition_penalty=given.repetition_penalty if given.HasField("repetition_penalty") else 1.0,
        logit_bias=dict(given.logit_bias),
    )
    _check_range("temperature", params.temperature, 0, 2)
    _check_range("top_p", params.top_p, 0, 1, above_low=True)
    _check_range("min_p", params.min_p, 0, 1)
    _check_range("presence_penalty", params.presence_penalty, -2, 2)
    _check_range("frequency_penalty", params.frequency_penalty, -2, 2)
    _check_range("repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, 10)
    _check_count("logit_bias", len(params.logit_bias), MAX_LOGIT_BIAS)
    for token_id, bias in params.logit_bias.items():
        if token_id >= limits.vocab_size:
            raise _out_of_vocabulary("logit_bias", token_id, limits)
        _check_range("logit_bias", bias, -100, 100)
    return params


def _stop_params(given: common_pb2.StopParams, prompt_length: int, limits: ModelLimits) -> StopParams:
    max_tokens = _max_tokens(given, prompt_length, limits)
    if given.min_tokens > max_tokens:
        raise InvalidArgument(
            f"min_tokens ({given.min_tokens}) is more than the {max_tokens} tokens that may be generated", "min_tokens"
        )
    stop_ids = frozenset(given.stop_token_ids)
    _check_count("stop_token_ids", len(given.stop_token_ids), MAX_STOP_TOKEN_IDS)
    if stop_ids and max(stop_ids) >= limits.vocab_size:
        raise _out_of_vocabulary("stop_token_ids", max(stop_ids), limits)
    return StopParams(
        max_tokens=max_tokens,
        min_tokens=given.min_tokens,
        stop_token_ids=stop_ids if given.ignore_eos else stop_ids | limits.eos_token_ids,
    )


def _max_tokens(given: common_pb2.StopParams, prompt_length: int, limits: ModelLimits) -> int:
    """The request's max_tokens, or what fits. The wording of the errors is the one that OpenAI's clients know."""
    limit = limits.max_model_len
    if given.HasField("max_tokens"):
        wanted = given.max_tokens
        if prompt_length + wanted > limit:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {limit} tokens. "
                f"However, you requested {prompt_length + wanted} tokens "
                f"({prompt_length} in the prompt, {wanted} for the completion). "
                "Please reduce the length of the prompt or the completion.",
                "prompt_ids" if prompt_length >= limit else "max_tokens",
            )
        return wanted
    if prompt_length >= limit:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limit} tokens. However, your prompt has {prompt_length} tokens, "
            "which leaves no room for a completion. Please reduce the length of the prompt.",
            "prompt_ids",
        )
    return limit - prompt_length


def _check_range(param: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    """Both ends belong to the range, unless `above_low`. NaN is in no range."""
    if not low <= value <= high or (above_low and value == low):
        start = f"greater than {low:g} and" if above_low else f"at least {low:g} and"
        raise InvalidArgument(f"{param} must be {start} at most {high}, not {value:.6g}", param)


def _check_count(param: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidArgument(f"{param} has {count} entries; at most {most} are allowed", param)


def _out_of_vocabulary(param: str, token_id: int, limits: ModelLimits) -> InvalidArgument:
    return InvalidArgument(
        f"{param} has the token id {token_id}, which is not in the vocabulary (0 to {limits.vocab_size - 1})", param
    )
