"""An executor that replays given texts on a clock, without weights.

It is for measurements of everything around the model, and for formats that a small model never writes. What it returns
depends on the plan alone, as with a real one.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError
from tokenizers import Tokenizer

from services.engine.executor.base import ExecutorInfo
from services.engine.plan import SamplingJob, SequencePlan, States, StepPlan, StepResult, TokenLogprobs

SENTENCE = " The post rider changes horses at every station, and the letter keeps its seal until the road ends."


class ScriptError(ValueError):
    """The script file cannot be used; the message says why."""


class _Output(BaseModel, extra="forbid"):
    prompt_contains: str | None = None
    text: str
    finish: bool


class _ScriptFile(BaseModel, extra="forbid"):
    outputs: list[_Output]


@dataclass(frozen=True, slots=True)
class ScriptEntry:
    """What follows a prompt: the ids over and over; with an end-of-sequence id as their last one if it shall finish."""

    prompt_contains: str | None  # None: any prompt
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """The first entry that fits a prompt is replayed for it."""

    entries: tuple[ScriptEntry, ...]  # the last one fits every prompt
    decode: Callable[[Sequence[int]], str]

    @classmethod
    def endless(cls, tokenizer_json: bytes) -> Script:
        """One sentence, repeated until max_tokens."""
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
        return cls((_sentence(tokenizer),), tokenizer.decode)

    @classmethod
    def load(cls, path: Path, tokenizer_json: bytes, eos_token_ids: frozenset[int]) -> Script:
        """Reads {"outputs": [{"prompt_contains": str | null, "text": str, "finish": bool}]}. Raises ScriptError.

        A prompt that no entry fits gets the sentence of `endless`.
        """
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
        try:
            outputs = _ScriptFile.model_validate_json(path.read_bytes()).outputs
        except OSError as error:
            raise ScriptError(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            raise ScriptError(f"{path} is not a script: {error}") from error
        entries = [_entry(output, tokenizer, eos_token_ids) for output in outputs]
        return cls((*entries, _sentence(tokenizer)), lambda ids: tokenizer.decode(ids, skip_special_tokens=False))

    def token_ids_for(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """The ids that are replayed for a prompt."""
        if len(self.entries) == 1:
            return self.entries[0].token_ids
        prompt = self.decode(prompt_ids)
        fits = (e for e in self.entries if e.prompt_contains is None or e.prompt_contains in prompt)
        return next(fits).token_ids


def _sentence(tokenizer: Tokenizer) -> ScriptEntry:
    return ScriptEntry(None, tuple(tokenizer.encode(SENTENCE, add_special_tokens=False).ids))


def _entry(output: _Output, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> ScriptEntry:
    token_ids = tokenizer.encode(output.text, add_special_tokens=False).ids
    if output.finish:
        if not eos_token_ids:
            raise ScriptError("an output shall finish, but the model has no end-of-sequence id")
        token_ids.append(min(eos_token_ids))
    if not token_ids:
        raise ScriptError("an output has no text and does not finish")
    return ScriptEntry(output.prompt_contains, tuple(token_ids))


class ScriptedExecutor:
    """Runs plans by a script.

    A step that computes prompt tokens returns at once; one that only decodes returns `step_ms` after the decode step
    before it.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        script: Script,
        step_ms: float,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        *,
        hidden_size: int = 64,
    ) -> None:
        """`clock` and `sleep` are in seconds; `hidden_size` is that of the states that it makes up."""
        self.info = info
        self._clock = clock
        self._sleep = sleep
        self._script = script
        self._hidden_size = hidden_size
        self._step_seconds = step_ms / 1000
        self._next_decode = 0.0  # when, by the clock, the next decode step is due
        self._replayed: dict[int, tuple[int, ...]] = {}  # by sequence id, for the sequences of the last step

    def execute(self, plan: StepPlan) -> StepResult:
        """The token of output position n is the script's n-th one, or the next after it that is allowed; where the
        script has none, the allowed one with the lowest id."""
        known, self._replayed = self._replayed, {}
        result = StepResult(plan.number, {})
        computes_prompt = False
        for entry in plan.sequences:
            if len(entry.sampling) < len(entry.token_ids) or not entry.sampling[0].output_ids:
                computes_prompt = True
            if entry.sampling:
                script = known.get(entry.sequence_id) or self._script.token_ids_for(entry.sampling[0].prompt_ids)
                self._replayed[entry.sequence_id] = script
                token_ids = result.token_ids[entry.sequence_id] = [_next_token(script, job) for job in entry.sampling]
                if entry.num_logprobs is not None:
                    result.logprobs[entry.sequence_id] = self._made_up(token_ids, entry.num_logprobs)
            if entry.scoring is not None:
                scored = self._made_up(entry.scoring.next_ids, entry.scoring.num_top)
                result.prompt_logprobs[entry.sequence_id] = scored
            if entry.state_rows:
                result.states[entry.sequence_id] = self._states(entry)
        if not computes_prompt:
            self._wait_for_clock()
        return result

    def _states(self, plan: SequencePlan) -> States:
        """By token id and position alone: random, and the same in every run."""
        return np.stack(
            [
                np.random.default_rng((plan.token_ids[row], plan.start + row)).standard_normal(
                    self._hidden_size, np.float32
                )
                for row in plan.state_rows
            ]
        )

    def _made_up(self, token_ids: Sequence[int], num_top: int) -> TokenLogprobs:
        """Each token is the most probable one, with 1/2; the ids after it follow with 1/4, 1/8 and so on."""
        num_top = min(num_top, self.info.vocab_size)
        places = range(num_top)
        return TokenLogprobs(
            num_top,
            [math.log(0.5)] * len(token_ids),
            [1] * len(token_ids),
            [(token_id + place) % self.info.vocab_size for token_id in token_ids for place in places],
            [math.log(0.5) * (place + 1) for _ in token_ids for place in places],
        )

    def close(self) -> None:
        """Holds nothing."""

    def _wait_for_clock(self) -> None:
        now = self._clock()
        if (delay := self._next_decode - now) > 0:
            self._sleep(delay)
            now = self._next_decode  # the clock does not drift by what sleep oversleeps
        self._next_decode = now + self._step_seconds


def _next_token(script: tuple[int, ...], job: SamplingJob) -> int:
    position = len(job.output_ids)
    if job.mask is None and not job.forbidden_ids:
        return script[position % len(script)]
    following = (script[(position + offset) % len(script)] for offset in range(len(script)))
    is_allowed = _allowance(job)
    allowed = next((token_id for token_id in following if is_allowed(token_id)), None)
    return allowed if allowed is not None else next(filter(is_allowed, itertools.count()))


def _allowance(job: SamplingJob) -> Callable[[int], bool]:
    """Whether a token may come next."""
    if job.mask is None:
        return lambda token_id: token_id not in job.forbidden_ids
    words = job.mask.words()
    return lambda token_id: bool(words[token_id // 32] >> token_id % 32 & 1)
