"""How the answers of chat and text completions look: types of the JSON objects, which are dicts when they are written.

mypy holds the code to them, and /openapi.json describes them.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

FinishReason = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length", "tool_calls"]})]
CompletionFinishReason = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length"]})]
Milliseconds = dict[str, float]


class PromptTokensDetails(TypedDict):
    """Of the prompt's tokens those whose keys and values came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """Of the generated tokens those of the reasoning."""

    reasoning_tokens: int


class UsageFields(TypedDict):
    """Tokens of the whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class PromptToken(TypedDict):
    """A token that might stand at a place of the prompt. `rank` 1 is the most probable one."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]


class AlternativeToken(TypedDict):
    """One of the most probable tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(AlternativeToken):
    """A token of a chat's output."""

    top_logprobs: list[AlternativeToken]


class ChatLogprobs(TypedDict):
    """`logprobs` of a chat's choice."""

    content: list[ChatToken]
    refusal: None


class CalledFunction(TypedDict):
    """The function of a call; `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A whole call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(TypedDict):
    """The message that answers a chat. `content` is null where there are only calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One answer to a chat."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    """A chat's answer as a whole."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    prompt_logprobs: NotRequired[PromptLogprobs]
    usage: UsageFields
    timings: NotRequired[Milliseconds]


class FunctionDelta(TypedDict):
    """`name` is in the first delta of a call; `arguments` is the next piece of JSON text."""

    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    """What a chunk adds to the call of this index. `id` and `type` are in its first one."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class MessageDelta(TypedDict, total=False):
    """What a chunk adds to the message; empty in a choice's last chunk."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallDelta]


class ChatChunkChoice(TypedDict):
    """A choice in a chunk; `finish_reason` is null in all but its last one."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(TypedDict):
    """The data of an event of a chat's stream. The last chunk may have usage without choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageFields | None]
    timings: NotRequired[Milliseconds]


class CompletionLogprobs(TypedDict):
    """`logprobs` of a text completion's choice: an entry per token in each. null: nothing is before the token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """One continuation of a text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: CompletionFinishReason
    prompt_logprobs: NotRequired[PromptLogprobs]


class Completion(TypedDict):
    """A text completion's answer as a whole."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageFields
    timings: NotRequired[Milliseconds]


class CompletionChunkChoice(TypedDict):
    """A choice in a chunk; `finish_reason` is null in all but its last one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: CompletionFinishReason | None


class CompletionChunk(TypedDict):
    """The data of an event of a text completion's stream. The last chunk may have usage without choices."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: NotRequired[UsageFields | None]
    timings: NotRequired[Milliseconds]
