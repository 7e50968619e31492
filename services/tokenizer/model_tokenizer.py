"""A model's tokenizer and chat template, by transformers' own machinery without torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from services.common.errors import InvalidArgument
from services.tokenizer.chat import Chat
from services.tokenizer.formats import Formats, formats_of
from services.tokenizer.tool_prompt import with_tools_told

# Names that a request may not set by template_kwargs: what the renderer itself takes, the template's source among them.
_OPEN_NAMES = {"documents", "continue_final_message", "kwargs"}
RESERVED_NAMES = frozenset(
    (set(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters) | {"conversations", "messages"})
    - _OPEN_NAMES
)
# What a template raises for messages that it was not made for: its own words, or a wrong type somewhere.
_RENDER_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_PROBE = "a-probe"


class UnusableTokenizerFiles(ValueError):
    """The engine's tokenizer files cannot be loaded."""


@dataclass(frozen=True, slots=True)
class ContentForms:
    """In which forms a chat template takes a message's content."""

    text: bool
    parts: bool


class ModelTokenizer:
    """Encodes texts and renders chats for one model. Its methods may run on several threads at once.

    Special tokens that are written out in a text or a message become special tokens, as in transformers: a caller that
    takes text from strangers and minds forged turns removes them first.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._encoder: Tokenizer = tokenizer.backend_tokenizer
        self._encoder.no_truncation()  # the engine judges lengths; some files cut without a word
        self._encoder.no_padding()
        # A byte or a leading space may be written with more than one byte in the vocabulary: a bound, not the length.
        self.longest_token = max((len(token.encode()) for token in self._encoder.get_vocab()), default=1)  # bytes
        has_template = bool(tokenizer.chat_template)
        self._forms = self._probe_content_forms() if has_template else ContentForms(text=True, parts=False)
        self._takes_tools = has_template and self._probe_tools()
        template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
        self.formats = formats_of(template, takes_tools=self._takes_tools) if template else Formats()

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Loads tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises UnusableTokenizerFiles."""
        with TemporaryDirectory(prefix="postroad-tokenizer-") as folder:
            for name, data in files.items():
                if Path(name).name != name:
                    raise UnusableTokenizerFiles(f"not a file's name: {name!r}")
                Path(folder, name).write_bytes(data)
            try:
                return cls(PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True))
            except Exception as error:  # tokenizers raises bare Exceptions for files that it cannot read
                raise UnusableTokenizerFiles(f"the tokenizer files cannot be loaded: {error}") from error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a text; with the special tokens that the model expects around a prompt, or as it stands."""
        # encode_batch_fast computes no offsets and lets other threads run for all of its time.
        ids: list[int] = self._encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def render(self, chat: Chat) -> str:
        """The prompt that the model's chat template makes of a chat, with its special tokens written out.

        Content is handed over in a form that the template takes: parts are joined by newlines for a template that
        takes strings only. Raises InvalidArgument with the template's own words when it refuses the messages.
        """
        if not self._tokenizer.chat_template:
            raise InvalidArgument("the model has no chat template; send a prompt instead of messages", "messages")
        if taken := sorted(RESERVED_NAMES & chat.template_kwargs.keys()):
            raise InvalidArgument(f"template_kwargs: {taken[0]!r} cannot be set", "template_kwargs")
        if not self._takes_tools:
            chat = with_tools_told(chat)
        messages = [self._in_known_form(message) for message in chat.messages]
        try:
            return self._apply_template(
                messages, tools=chat.tools, add_generation_prompt=chat.add_generation_prompt, **chat.template_kwargs
            )
        except _RENDER_ERRORS as error:
            raise InvalidArgument(f"the chat template refused the messages: {error}", "messages") from error

    def _in_known_form(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message["content"]
        if isinstance(content, list) and not self._forms.parts:
            return {**message, "content": "\n".join(part["text"] for part in content)}
        if isinstance(content, str) and not self._forms.text:
            return {**message, "content": [{"type": "text", "text": content}]}
        return message

    def _probe_content_forms(self) -> ContentForms:
        """Finds out by rendering: a form is taken if the text comes out as it went in, and nothing of its wrapping."""
        parts = self._probe([{"type": "text", "text": _PROBE}])
        text = self._probe(_PROBE)
        takes_parts = _PROBE in parts and f"'{_PROBE}'" not in parts and f'"{_PROBE}"' not in parts
        return ContentForms(text=_PROBE in text or not takes_parts, parts=takes_parts)

    def _probe_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        function = {"name": _PROBE, "description": _PROBE, "parameters": {"type": "object", "properties": {}}}
        form = "probing" if self._forms.text else [{"type": "text", "text": "probing"}]
        shown = self._probe(form, tools=[{"type": "function", "function": function}])
        return _PROBE in shown if shown else "tools" in str(self._tokenizer.chat_template)  # it wants more than a probe

    def _probe(self, content: object, **kwargs: Any) -> str:
        try:
            return self._apply_template([{"role": "user", "content": content}], **kwargs)
        except _RENDER_ERRORS:
            return ""

    def _apply_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        prompt = self._tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        if not isinstance(prompt, str):
            raise TypeError("the template did not render a text")
        return prompt
