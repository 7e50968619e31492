"""The formats by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.gateway.formats.hermes import HermesReader
from services.gateway.formats.llama3_json import Llama3JsonReader
from services.gateway.formats.mistral import MistralReader
from services.gateway.formats.pythonic import PythonicReader
from services.gateway.parts import PartReader


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format of tool calls. `special_tokens`: its markers are special tokens, which the text must keep."""

    reader: Callable[[], PartReader]
    special_tokens: bool = False


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat(HermesReader),
    "llama3_json": ToolFormat(Llama3JsonReader, special_tokens=True),
    "pythonic": ToolFormat(PythonicReader, special_tokens=True),
    "mistral": ToolFormat(MistralReader, special_tokens=True),
}
