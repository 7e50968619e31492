"""What passes between scheduler and executor: a numbered step plan one way, its result the other.

Plain data, no torch: the scheduler makes a plan from its own state alone, and a plan is all that an executor needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from services.engine.grammar.form import OutputForm

PENDING_TOKEN = -1  # in `SequencePlan.token_ids`: the token that the step before this one samples of the sequence
States = npt.NDArray[np.float32]  # [rows, hidden_size], what the model's head takes: after the last norm
TokenWords = npt.NDArray[np.int32]  # [ceil(vocab_size / 32)]; with bit i of word w the token 32 w + i is allowed


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a sequence's next token is chosen. Ranges and meanings: `postroad.v1.SamplingParams`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0  # always set: the edge draws one where the request has none
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a sequence ends. `stop_token_ids` is resolved: the request's ids, and the model's unless ignore_eos."""

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()


class OutputGrammar(Protocol):
    """Where one sequence's output stands in the form that it must have. It follows the tokens that are accepted."""

    form: OutputForm
    failure: str  # why it cannot go on, for instance because it became too complex; empty while it can
    ending_ids: frozenset[int]  # tokens that end the output; they are allowed only where the form is complete

    def masks(self, drafts: Sequence[int], may_end: Sequence[bool]) -> list[TokenWords]:
        """What may come next, and after each of the tokens that are guessed to come. `may_end` has an entry for each:
        where it is false, no ending may come unless there is nothing else."""
        ...

    def accept(self, token_id: int) -> bool:
        """Takes the next token. True if it is the last one: an ending, or nothing can follow it."""
        ...

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens that were accepted."""


class TokenMask(Protocol):
    """What a grammar allows at one place."""

    def words(self) -> TokenWords:
        """Waits until it is computed."""
        ...


@dataclass(slots=True)
class SamplingJob:
    """All that is needed to choose the token that follows one token of a step, from its logits.

    `prompt_ids` and `output_ids` are all ids before the chosen one, but for a pending one; they may be the scheduler's
    own lists, to be read while the step runs (before the next one is launched) and not kept. The random number of a
    token depends on (`params.seed`, `place`) alone, so that neither batch mates nor a recomputation change it.
    """

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    forbidden_ids: frozenset[int] = frozenset()  # stop ids while fewer than min_tokens are out
    mask: TokenMask | None = None  # of the sequence's grammar
    num_pending: int = 0  # tokens behind `output_ids` that the step before this one samples
    edits_logits: bool = field(init=False)  # whether the logits are changed before the token is chosen

    def __post_init__(self) -> None:
        params = self.params
        self.edits_logits = (
            params.has_penalties or bool(params.logit_bias) or bool(self.forbidden_ids) or self.mask is not None
        )

    @property
    def place(self) -> int:
        """The chosen token's index in the output."""
        return len(self.output_ids) + self.num_pending

    def restrict(self, mask: TokenMask) -> None:
        """Has a grammar decide. Its mask knows of forbidden_ids, and lets one of them pass where nothing else may."""
        self.mask, self.forbidden_ids, self.edits_logits = mask, frozenset(), True


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities of consecutive tokens, flat. Meanings: `postroad.v1.TokenLogprobs`."""

    num_top: int
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.logprobs)

    def part(self, start: int, stop: int, num_top: int) -> TokenLogprobs:
        """Those of the tokens `start` … `stop - 1`, with fewer alternatives where they have more than `num_top`."""
        num_top = min(num_top, self.num_top)
        top = [slice(i * self.num_top, i * self.num_top + num_top) for i in range(start, min(stop, len(self)))]
        return TokenLogprobs(
            num_top,
            self.logprobs[start:stop],
            self.ranks[start:stop],
            [token_id for places in top for token_id in self.top_ids[places]],
            [logprob for places in top for logprob in self.top_logprobs[places]],
        )

    def extend(self, others: TokenLogprobs) -> None:
        """Adds those of the tokens that follow, which have as many alternatives."""
        self.logprobs += others.logprobs
        self.ranks += others.ranks
        self.top_ids += others.top_ids
        self.top_logprobs += others.top_logprobs


@dataclass(slots=True)
class ScoringJob:
    """Log-probabilities of prompt tokens: of each of `next_ids` given all before it.

    The logits are those of the tokens at `first_row` and behind in `SequencePlan.token_ids`.
    """

    first_row: int
    next_ids: list[int]
    num_top: int

    @property
    def rows(self) -> range:
        """Indices into `SequencePlan.token_ids`."""
        return range(self.first_row, self.first_row + len(self.next_ids))


@dataclass(slots=True)
class SequencePlan:
    """One sequence's part of a step.

    Keys and values of `token_ids` are computed at positions `start` … `start + len(token_ids) - 1` and written to the
    pages of `page_table` (position p lives in page `page_table[p // page_size]`, slot `p % page_size`). It may be the
    scheduler's own list, to be read while the step runs and not kept. Attention is causal over positions 0 … p. Pages
    before `start` may have been written by an earlier step or, for a prefix shared between requests that arrived
    together, by an earlier sequence of this very step: an executor writes a layer's keys and values for all sequences
    before it attends for any.
    """

    sequence_id: int
    token_ids: list[int]
    start: int
    page_table: list[int]
    sampling: list[SamplingJob]  # for each of the last tokens, in order; none in a prefill chunk that is not the last
    num_logprobs: int | None = None  # alternatives with the log-probability of each sampled token; None: not wanted
    scoring: ScoringJob | None = None
    grammar: OutputGrammar | None = None  # as of the token before the last ones with a job
    state_rows: range = range(0)  # indices into `token_ids`: the tokens whose states are wanted

    @property
    def is_decode(self) -> bool:
        return len(self.token_ids) == 1

    @property
    def guesses(self) -> list[int]:
        """The last of `token_ids` that are guesses of what will be sampled: all with a job but the first."""
        return self.token_ids[len(self.token_ids) - len(self.sampling) + 1 :] if self.sampling else []


@dataclass(slots=True)
class StepPlan:
    """One engine step. `number` grows by one per plan; sequences keep the order in which their tokens are batched."""

    number: int
    sequences: list[SequencePlan]

    @property
    def num_tokens(self) -> int:
        return sum([len(s.token_ids) for s in self.sequences])


@dataclass(slots=True)
class StepResult:
    """What a step made, by sequence id: the sampled tokens, of each that samples one per job, in the order of its jobs;
    the log-probabilities that were asked for, of those tokens and of scored prompt tokens; and the states that are
    wanted."""

    number: int
    token_ids: dict[int, list[int]]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    states: dict[int, States] = field(default_factory=dict)

    @classmethod
    def of_rows(cls, number: int, sequence_ids: Sequence[int], token_ids: Sequence[int]) -> Self:
        """From one token per row of logits; the rows of a sequence are in the order of its jobs."""
        result = cls(number, {})
        result.add_tokens(sequence_ids, token_ids)
        return result

    def add_tokens(self, sequence_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """One token per row of logits; the rows of a sequence are in the order of its jobs."""
        for sequence_id, token_id in zip(sequence_ids, token_ids, strict=True):
            self.token_ids.setdefault(sequence_id, []).append(token_id)
