"""The items of a response's output, made of the blocks of a choice, and the events that tell them piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.gateway.api.answer_types import ChatToken
from services.gateway.api.choices import Block, WholeReasoning, WholeText, WholeToolCall
from services.gateway.api.logprobs import chat_logprobs
from services.gateway.api.responses.answer_types import (
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputPart,
    OutputReasoning,
    OutputText,
    ReasoningText,
)
from services.gateway.api.responses.event_types import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    StreamEvent,
    TextDelta,
    TextDone,
)
from services.gateway.scored import ScoredToken

_PREFIXES = {WholeText: "msg", WholeReasoning: "rs", WholeToolCall: "fc"}


@dataclass(frozen=True, slots=True)
class Item:
    """One item. `id`: the same in the stream and in the whole response; `logprobs`: a text has those of its tokens."""

    id: str
    index: int
    block: Block
    logprobs: bool

    @classmethod
    def of(cls, request_id: str, index: int, block: Block, *, logprobs: bool) -> Item:
        """The item at a place of the output."""
        return cls(f"{_PREFIXES[type(block)]}_{request_id}-{index}", index, block, logprobs)

    def fields(self, status: ItemStatus) -> OutputItem:
        """The item as it is by now."""
        match self.block:
            case WholeText():
                return OutputMessage(self.id, status, "assistant", [self._message_part()])
            case WholeReasoning():
                return OutputReasoning(self.id, status, [], [ReasoningText(self._text)])
            case WholeToolCall():
                return OutputCall(self.id, status, self.block.id, self.block.name, self._text)

    def opening(self) -> Iterator[StreamEvent]:
        """The events with which it begins: it is empty."""
        item: OutputItem
        part: OutputPart
        match self.block:
            case WholeText():
                item, part = OutputMessage(self.id, "in_progress", "assistant", []), OutputText("", [], [])
            case WholeReasoning():
                item, part = OutputReasoning(self.id, "in_progress", [], []), ReasoningText("")
            case WholeToolCall():
                item = OutputCall(self.id, "in_progress", self.block.id, self.block.name, "")
                yield ItemAdded(output_index=self.index, item=item)
                return
        yield ItemAdded(output_index=self.index, item=item)
        yield PartAdded(item_id=self.id, output_index=self.index, content_index=0, part=part)

    def delta(self, text: str, tokens: Sequence[ScoredToken]) -> StreamEvent:
        """The event with more of its text."""
        match self.block:
            case WholeText():
                return TextDelta(
                    item_id=self.id,
                    output_index=self.index,
                    content_index=0,
                    delta=text,
                    logprobs=self._tokens(tokens),
                )
            case WholeReasoning():
                return ReasoningDelta(item_id=self.id, output_index=self.index, content_index=0, delta=text)
            case WholeToolCall():
                return ArgumentsDelta(item_id=self.id, output_index=self.index, delta=text)

    def closing(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """The events with which it ends."""
        part: OutputPart | None = None
        match self.block:
            case WholeText():
                part = self._message_part()
                yield TextDone(
                    item_id=self.id,
                    output_index=self.index,
                    content_index=0,
                    text=part.text,
                    logprobs=part.logprobs,
                )
            case WholeReasoning():
                part = ReasoningText(self._text)
                yield ReasoningDone(item_id=self.id, output_index=self.index, content_index=0, text=part.text)
            case WholeToolCall():
                name, arguments = self.block.name, self._text
                yield ArgumentsDone(item_id=self.id, output_index=self.index, name=name, arguments=arguments)
        if part is not None:
            yield PartDone(item_id=self.id, output_index=self.index, content_index=0, part=part)
        yield ItemDone(output_index=self.index, item=self.fields(status))

    @property
    def _text(self) -> str:
        return "".join(self.block.pieces)

    def _message_part(self) -> OutputText:
        assert isinstance(self.block, WholeText)
        return OutputText(self._text, [], self._tokens(self.block.tokens))

    def _tokens(self, tokens: Sequence[ScoredToken]) -> list[ChatToken]:
        return chat_logprobs(tokens)["content"] if self.logprobs else []
