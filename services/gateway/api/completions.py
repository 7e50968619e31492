"""POST /v1/completions: the request, the answer and its chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from services.gateway.api.answer_types import CompletionChoice, CompletionChunkChoice, CompletionLogprobs
from services.gateway.api.answers import Answer, AnswerHead, ChoicesAnswer, Parsed, Reading
from services.gateway.api.best_of import best_choices
from services.gateway.api.choices import WholeChoice
from services.gateway.api.logprobs import completion_logprobs, prompt_logprobs
from services.gateway.api.parameters import (
    MAX_N,
    CompletionParameters,
    GenerationParameters,
    LogprobCount,
    OffValues,
    check_completion_parameters,
)
from services.gateway.api.prompt_field import PromptField, given_prompts, prompts_schema
from services.gateway.api.structured_output import extension_forms, output_form, response_forms
from services.gateway.errors import invalid
from services.gateway.parts import Content, Part, TextReader
from services.gateway.scored import Scored
from services.gateway.validation import decode, refuse_later_features

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 256


class CompletionRequest(CompletionParameters, kw_only=True):
    """The body of a text completion."""

    off_values: ClassVar[OffValues] = {
        **CompletionParameters.off_values,
        "top_logprobs": (0,),  # fields of chats
        "tools": ([],),
        "tool_choice": ("none",),
    }

    prompt: Annotated[PromptField, Meta(extra_json_schema=prompts_schema(MAX_PROMPTS))]
    add_special_tokens: bool | None = None
    logprobs: LogprobCount | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    top_logprobs: Any = None
    tools: Any = None
    tool_choice: Any = None

    @property
    def choices_per_prompt(self) -> int:
        return super().choices_per_prompt if self.best_of is None else self.best_of

    @property
    def choices_field(self) -> str:
        return "n" if self.best_of is None else "best_of"

    @property
    def chosen_per_prompt(self) -> int:
        """How many of a prompt's choices are answered."""
        return self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """Choices are compared by their log-probabilities."""
        return 0 if self.logprobs is None and self.choices_per_prompt > self.chosen_per_prompt else self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """An echoed prompt has log-probabilities as the output has."""
        given = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((count for count in given if count is not None), default=None)

    @property
    def echoes_prompt(self) -> bool:
        return bool(self.echo)

    @property
    def token_limit(self) -> int | None:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens


_BODY = msgspec.json.Decoder(CompletionRequest)


class CompletionForm:
    """A choice of a text completion."""

    chunk_kind = "text_completion"
    whole_kind = "text_completion"

    def __init__(self, body: CompletionRequest) -> None:
        self._num_logprobs = body.logprobs
        self._num_prompt_logprobs = body.prompt_logprobs
        self._echoes = body.echoes_prompt

    def opening(self, _index: int) -> None:
        """None: a text completion has no role."""

    def part(self, index: int, part: Part) -> CompletionChunkChoice:
        """A chunk with text. There are no other parts: the reader is a TextReader."""
        assert isinstance(part, Content)
        return _choice(index, part.text, None)

    def finish(self, index: int, reason: str) -> CompletionChunkChoice:
        """The choice's last chunk: no text."""
        return _choice(index, "", reason)

    def logprobs(self, scored: Scored) -> CompletionLogprobs | None:
        """The choice's `logprobs`; with `echo` of the prompt's tokens, too."""
        if self._num_logprobs is None:
            return None
        prompt_tokens = scored.prompt_tokens if self._echoes else []
        return completion_logprobs([*prompt_tokens, *scored.tokens], self._num_logprobs)

    def whole(self, choice: WholeChoice) -> CompletionChoice:
        """The whole choice; `prompt_logprobs` is where vLLM's API has it."""
        fields: CompletionChoice = {
            "index": choice.index,
            "text": choice.content,
            "logprobs": self.logprobs(choice.scored),
            "finish_reason": choice.finish_reason,
        }
        if self._num_prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(choice.scored.prompt_tokens, self._num_prompt_logprobs)
        return fields

    def answer_fields(self, _choices: Sequence[WholeChoice]) -> Mapping[str, object]:
        """None beside the choices."""
        return {}


def _choice(index: int, text: str, finish_reason: str | None) -> CompletionChunkChoice:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


class CompletionDialect:
    """Text completions, for the generation endpoint."""

    path = "/v1/completions"
    id_prefix = "cmpl-"
    renders_chat = False
    prompt_field = "prompt"

    def parse(self, data: bytes) -> Parsed:
        """The checked body; all of its text is content. Raises ApiError 400."""
        body = decode(_BODY, data)
        refuse_later_features(body, body.off_values)
        check_completion_parameters(body)
        _check_best_of(body)
        prompts = given_prompts(body.prompt, "prompt", MAX_PROMPTS, body.add_special_tokens)
        form = output_form(response_forms(body.response_format), extension_forms(body))
        return Parsed(body, prompts, form, lambda _formats: Reading(TextReader))

    def answer(self, head: AnswerHead, body: GenerationParameters) -> Answer:
        """What builds the answer."""
        assert isinstance(body, CompletionRequest)
        chosen = partial(best_choices, of=body.choices_per_prompt, count=body.chosen_per_prompt)
        return ChoicesAnswer(head, body.include_usage, CompletionForm(body), chosen)


def _check_best_of(body: CompletionRequest) -> None:
    if body.choices_per_prompt < body.chosen_per_prompt:
        raise invalid(f"best_of must be at least n, {body.n}", "best_of")
    if body.stream and body.choices_per_prompt > body.chosen_per_prompt:
        raise invalid("best_of must be n when stream is true: a stream cannot wait for the best", "best_of")
