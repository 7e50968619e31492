"""The fields that generation endpoints share, after OpenAI's API and the extensions that vLLM made common."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from services.gateway.api.structured_output import Choice, ResponseFormat, Schema, StructuredOutputs
from services.gateway.errors import invalid
from services.gateway.validation import require_length

UINT32_MAX = 2**32 - 1
MAX_N = 128  # OpenAI's
MAX_CHOICES = 256  # of all prompts together
MAX_STOPS, MAX_STOP_CHARACTERS = 16, 1024
MAX_CACHE_SALT_BYTES = 256

TokenId = Annotated[int, Meta(ge=0, le=UINT32_MAX)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
LogprobCount = Annotated[int, Meta(ge=0, le=20)]
TokenCount = Annotated[int, Meta(ge=1, le=UINT32_MAX)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Priority = Annotated[int, Meta(ge=-100, le=100)]
LogitBias = Annotated[
    dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]],
    Meta(max_length=1024, extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"}}),
]
# Values that leave a feature off, by field; null always does.
OffValues = dict[str, tuple[Any, ...]]


class GenerationParameters(msgspec.Struct, kw_only=True):
    """What any generation request may say beside its prompt. null means the same as leaving a field out."""

    off_values: ClassVar[OffValues] = {}

    model: str | None = None
    stream: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=UINT32_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=UINT32_MAX)] | None = None  # -1 and 0: no limit
    min_p: Probability | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    logit_bias: LogitBias | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema = msgspec.UNSET
    guided_regex: str | None = None
    guided_choice: Choice | None = None
    guided_grammar: str | None = None
    num_speculative_tokens: Annotated[int, Meta(ge=0, le=16)] | None = None
    timings: bool | None = None  # our extension: the times of the request beside its usage

    @property
    def stops(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices_per_prompt(self) -> int:
        """How many answers are generated for each prompt."""
        return 1

    @property
    def choices_field(self) -> str:
        """The field that `choices_per_prompt` is from."""
        return "n"

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk of a stream has the usage so far."""
        return False

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives with the log-probability of each output token; None: no log-probabilities."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Likewise for the prompt's tokens."""
        return None

    @property
    def echoes_prompt(self) -> bool:
        """Whether the text begins with the prompt's."""
        return False

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate; None for as many as fit."""
        return None

    @property
    def token_limit_field(self) -> str:
        """The field that `token_limit` is from."""
        return "max_tokens"

    def limit_to(self, room: int) -> None:
        """Says how many tokens the model has room for behind the prompt, as soon as that is known.

        A request for more is refused by the engine; where the endpoint's API cuts it instead, this is the place.
        """


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class UnsupportedFields(GenerationParameters, kw_only=True):
    """Fields of completions that this server does not have: refused by name rather than ignored in silence."""

    suffix: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    store: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    truncate_prompt_tokens: Any = None
    prompt_embeds: Any = None
    chat_template: Any = None
    documents: Any = None
    continue_final_message: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    include_reasoning: Any = None
    separate_reasoning: Any = None
    thinking_token_budget: Any = None
    logits_processors: Any = None
    custom_logit_processor: Any = None
    lora_path: Any = None
    return_hidden_states: Any = None
    guided_whitespace_pattern: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    grammar: Any = None
    stop_regex: Any = None
    typical_p: Any = None
    mirostat: Any = None


OFF_VALUES: OffValues = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"], []),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "store": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "chat_template": (),
    "documents": ([],),
    "continue_final_message": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "thinking_token_budget": (),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "lora_path": (),
    "return_hidden_states": (False,),
    "guided_whitespace_pattern": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "grammar": (),
    "stop_regex": (),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
}


class CompletionParameters(UnsupportedFields, kw_only=True):
    """What chat and text completions have in common."""

    off_values: ClassVar[OffValues] = OFF_VALUES

    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=UINT32_MAX)] | None = None
    response_format: ResponseFormat | None = None
    prompt_logprobs: LogprobCount | None = None

    @property
    def choices_per_prompt(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens


def check_cache_salt(given: str | None) -> None:
    """Raises ApiError 400 for one that is too long."""
    if given is not None and len(given.encode()) > MAX_CACHE_SALT_BYTES:
        raise invalid(f"cache_salt must have at most {MAX_CACHE_SALT_BYTES} bytes", "cache_salt")


def check_parameters(body: GenerationParameters) -> None:
    """Checks what types and ranges cannot say. Raises ApiError 400."""
    stops = body.stops
    require_length(stops, MAX_STOPS, "stop", "entries")
    for index, stop in enumerate(stops):
        param = "stop" if isinstance(body.stop, str) else f"stop[{index}]"
        if not stop:
            raise invalid(f"{param} must not be an empty string", param)
        require_length(stop, MAX_STOP_CHARACTERS, param, "characters")
    check_cache_salt(body.cache_salt)
    if body.token_limit is not None and (body.min_tokens or 0) > body.token_limit:
        raise invalid(f"min_tokens must be at most {body.token_limit_field}, {body.token_limit}", "min_tokens")


def check_completion_parameters(body: CompletionParameters) -> None:
    """As `check_parameters`, and the fields that only completions have."""
    check_parameters(body)
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is only allowed when stream is true", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs is not available when stream is true", "prompt_logprobs")
