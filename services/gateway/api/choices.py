"""The choices of one request while they come: each delta becomes an update, and updates become choices as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.gateway.deltas import Delta, Ending, EngineStart, Usage
from services.gateway.formats.reasoning import ThinkReader, ThoughtTokens
from services.gateway.parts import Content, Part, PartReader, Reasoning, ToolCallArguments, ToolCallStart
from services.gateway.runs import Run
from services.gateway.scored import Scored, ScoredToken


@dataclass(slots=True)
class Update:
    """What a delta adds to its choice. `start` is in the choice's first; `finish_reason` and, where one ended the text,
    `stop_string` in its last, and `mean_logprob`, per token, where log-probabilities are asked for."""

    choice: int
    parts: Sequence[Part]
    finish_reason: str | None = None
    start: EngineStart | None = None
    stop_string: str | None = None
    mean_logprob: float | None = None
    usage: Usage | None = None  # of the request so far, where that is asked for
    scored: Scored | None = None  # the next tokens, where log-probabilities are asked for


class Choices:
    """Reads the deltas of a request's runs; has a part reader for each choice."""

    def __init__(self, runs: Sequence[Run], make_reader: Callable[[], PartReader]) -> None:
        self._runs = runs
        self._readers = {run.choice: make_reader() for run in runs}
        self._endings: dict[int, Ending] = {}
        self._tokens = 0  # that the deltas stood for
        self._thoughts = {
            choice: ThoughtTokens(reader) for choice, reader in self._readers.items() if isinstance(reader, ThinkReader)
        }

    def update(self, delta: Delta) -> Update:
        """What the delta adds."""
        reader = self._readers[delta.choice]
        if thought := self._thoughts.get(delta.choice):
            thought.add(delta.token_offsets)
        parts = reader.read(delta.text) if delta.text else ()
        self._tokens += delta.tokens
        update = Update(delta.choice, parts, start=delta.start, scored=delta.scored)
        if delta.ending is not None:
            self._endings[delta.choice] = delta.ending
            update.parts = [*parts, *reader.close()]
            update.finish_reason = reader.finish_reason(delta.ending.finish_reason)
            update.stop_string = delta.ending.stop_string
            update.mean_logprob = delta.ending.mean_logprob
        return update

    def usage_so_far(self) -> Usage:
        """Of all choices together, as far as they have come. Cached tokens are not known before the end."""
        if self.are_finished:
            return self.usage()
        prompt_lengths = {run.prompt: len(run.request.request.prompt_ids) for run in self._runs}
        return Usage(sum(prompt_lengths.values()), self._tokens, 0, self._reasoning_tokens())

    @property
    def are_finished(self) -> bool:
        """Whether each choice has its ending."""
        return len(self._endings) == len(self._readers)

    @property
    def endings(self) -> Sequence[Ending]:
        """How the choices ended, as far as they have, in order."""
        return [self._endings[choice] for choice in sorted(self._endings)]

    def usage(self) -> Usage:
        """Of all choices together, once they are finished.

        A prompt counts once, whatever the number of its choices; its cached tokens are those that none of them had to
        compute.
        """
        by_prompt: dict[int, list[Usage]] = {}
        for run in self._runs:
            by_prompt.setdefault(run.prompt, []).append(self._endings[run.choice].usage)
        prompts = list(by_prompt.values())
        return Usage(
            prompt_tokens=sum(max(usage.prompt_tokens for usage in usages) for usages in prompts),
            completion_tokens=sum(usage.completion_tokens for usages in prompts for usage in usages),
            cached_tokens=sum(min(usage.cached_tokens for usage in usages) for usages in prompts),
            reasoning_tokens=self._reasoning_tokens(),
        )

    def _reasoning_tokens(self) -> int:
        return sum(thought.count for thought in self._thoughts.values())


@dataclass(slots=True)
class WholeText:
    """Content of a choice, in pieces. `tokens`: those that came with it, where log-probabilities are asked for."""

    pieces: list[str]
    tokens: list[ScoredToken] = field(default_factory=list)


@dataclass(slots=True)
class WholeReasoning:
    """Reasoning of a choice, in pieces."""

    pieces: list[str]


@dataclass(slots=True)
class WholeToolCall:
    """A call of a function; `pieces` are those of its arguments' JSON text."""

    id: str
    name: str
    pieces: list[str] = field(default_factory=list)


Block = WholeText | WholeReasoning | WholeToolCall


@dataclass(slots=True)
class WholeChoice:
    """The updates of one choice put together. `blocks`: what it consists of, in the order in which it came."""

    index: int
    blocks: list[Block] = field(default_factory=list)
    finish_reason: str = ""  # until it has ended
    stop_string: str | None = None
    mean_logprob: float | None = None
    scored: Scored = field(default_factory=Scored)
    placed: int = 0  # tokens of `scored` that are in a block

    def add(self, update: Update) -> None:
        """Adds what came."""
        if update.scored is not None:
            self.scored.extend(update.scored)
        for part in update.parts:
            self.add_part(part)
        if update.finish_reason is not None:
            self.finish(update.finish_reason, update.stop_string)
            self.mean_logprob = update.mean_logprob

    def finish(self, reason: str, stop_string: str | None) -> list[ScoredToken]:
        """It has ended. Tokens that are left, of what is no text, go into the last block, if it is one of text."""
        self.finish_reason, self.stop_string = reason, stop_string
        return self._place_tokens()

    def _place_tokens(self) -> list[ScoredToken]:
        """Puts the tokens that are in no block yet into the last one, if it is text; returns them."""
        last = self.blocks[-1] if self.blocks else None
        if not isinstance(last, WholeText):
            return []
        tokens = self.scored.tokens[self.placed :]
        last.tokens += tokens
        self.placed += len(tokens)
        return tokens

    def add_part(self, part: Part) -> list[ScoredToken]:
        """Adds a part; returns the tokens that go with it, if it is text: all that have come since the last text."""
        self._append(part)
        return self._place_tokens() if isinstance(part, Content) else []

    def _append(self, part: Part) -> None:
        last = self.blocks[-1] if self.blocks else None
        match part:
            case Content():
                if isinstance(last, WholeText):
                    last.pieces.append(part.text)
                else:
                    self.blocks.append(WholeText([part.text]))
            case Reasoning():
                if isinstance(last, WholeReasoning):
                    last.pieces.append(part.text)
                else:
                    self.blocks.append(WholeReasoning([part.text]))
            case ToolCallStart():
                self.blocks.append(WholeToolCall(part.id, part.name))
            case ToolCallArguments():
                assert isinstance(last, WholeToolCall), "the arguments of a call follow its start"
                last.pieces.append(part.text)

    @property
    def content(self) -> str:
        """All content, joined."""
        return "".join(piece for block in self.blocks if isinstance(block, WholeText) for piece in block.pieces)

    @property
    def reasoning(self) -> str:
        """All reasoning, joined."""
        return "".join(piece for block in self.blocks if isinstance(block, WholeReasoning) for piece in block.pieces)

    @property
    def tool_calls(self) -> list[WholeToolCall]:
        """The calls, in order."""
        return [block for block in self.blocks if isinstance(block, WholeToolCall)]
