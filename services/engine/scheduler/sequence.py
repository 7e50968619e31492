"""A request as the scheduler sees it: token ids, what of them is computed, and where it stands in line."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from services.engine.plan import OutputGrammar, SamplingJob, SamplingParams, StopParams
from services.engine.scheduler.pooling import Pooler
from services.engine.scheduler.prefix_tree import PrefixNode
from services.engine.scheduler.speculation import Speculation


class FinishReason(Enum):
    """Why a sequence ended."""

    # A stop token id, `Sequence.stop_token_id` says which; or nothing can follow by the grammar; or all is pooled.
    STOP = auto()
    LENGTH = auto()  # max_tokens or the model's length
    CANCELLED = auto()
    ERROR = auto()  # a step failed, or the grammar did


class SequenceState(Enum):
    WAITING = auto()  # new, or preempted; holds no pages
    RUNNING = auto()  # has a seat in the batch and holds pages
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's token ids and progress.

    The caller sets the fields of the first group; from `Scheduler.add` on, the scheduler owns and changes all others.
    Times are nanoseconds of the scheduler's clock, None until they happen.
    """

    sequence_id: int  # unique in this engine
    prompt_ids: list[int]
    sampling: SamplingParams
    stop: StopParams
    arrival_ns: int
    cache_salt: str = ""
    priority: int = 0  # higher first
    logprobs: int | None = None  # alternatives with each output token's log-probability; None: not wanted
    prompt_logprobs: int | None = None  # likewise for the prompt's tokens from the second on
    grammar: OutputGrammar | None = None  # None: the output is free
    grammar_wait_ns: int = 0  # from arrival until the grammar was there
    speculation: Speculation | None = None  # None: none of its tokens are guessed
    pooler: Pooler | None = None  # of a prompt to embed, which is prefilled only

    output_ids: list[int] = field(default_factory=list)
    state: SequenceState = SequenceState.WAITING
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    rank: tuple[int, int] = (0, 0)  # place in line, lower first; never changes once the scheduler has set it
    max_output: int = 0  # output tokens after which it ends at the latest
    jobs: list[SamplingJob] | None = None  # that of the next token, once it is the same for all that follow

    num_computed: int = 0  # leading tokens whose keys and values are in pages, those of the step in flight included
    num_scored: int = 0  # leading prompt tokens whose logits have been scored, where prompt_logprobs asks for it
    cached_tokens: int = 0  # prompt tokens that the first prefill took from the prefix cache
    preemptions: int = 0
    page_table: list[int] = field(default_factory=list)
    path: list[PrefixNode] = field(default_factory=list)  # root, then one node per full page of `page_table`

    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_left(self) -> int:
        """Tokens of prompt and output that are yet to be computed."""
        return len(self.prompt_ids) + len(self.output_ids) - self.num_computed

    @property
    def is_prefill_only(self) -> bool:
        """The prompt is computed and nothing is generated."""
        return self.stop.max_tokens == 0

    @property
    def num_skippable(self) -> int:
        """Leading tokens that may come from the prefix cache: neither the last one nor those that are yet to be scored
        or pooled are among them, for their logits or states are needed."""
        last = self.num_tokens - 1
        if self.pooler is not None:
            return min(last, self.pooler.num_dispensable)
        if self.prompt_logprobs is None or self.num_scored >= len(self.prompt_ids) - 1:
            return last
        return min(last, self.num_scored)

    @property
    def num_full_pages(self) -> int:
        """Leading pages of `page_table` that are nodes of the prefix tree; those behind them are the sequence's own."""
        return len(self.path) - 1 if self.path else 0

    def token_slice(self, start: int, stop: int) -> list[int]:
        """Token ids at positions `start` … `stop - 1` of prompt and output."""
        prompt_length = len(self.prompt_ids)
        if start >= prompt_length:
            return self.output_ids[start - prompt_length : stop - prompt_length]
        if stop <= prompt_length:
            return self.prompt_ids[start:stop]
        return self.prompt_ids[start:] + self.output_ids[: stop - prompt_length]

    def forbidden_ids(self, num_output: int) -> frozenset[int]:
        """Ids that the token after `num_output` output tokens must not be: the stop ids, until min_tokens are out."""
        return self.stop.stop_token_ids if num_output < self.stop.min_tokens else frozenset()
