"""The engine as the RPC handlers see it: admits requests, and hands each its tokens and its end.

Everything here runs on the event loop; the engine thread is reached through `EngineCore` alone. A request is in `_live`
from its admission until the engine thread has confirmed its end, so that neither side forgets the other's.
"""

from __future__ import annotations

import asyncio
import itertools
import time

from services.common.errors import EngineFailed, Internal, InvalidArgument, PostroadError, QueueFull
from services.engine.core import EngineCore, StepReport
from services.engine.executor.errors import BrokenSequencesError
from services.engine.grammar.library import GrammarLibrary
from services.engine.requests import LiveRequest
from services.engine.scheduler.sequence import FinishReason, Sequence
from services.engine.validation import ModelLimits, output_form, sequence_from_request, sequence_to_embed
from services.pb.postroad.v1 import engine_pb2


class Engine:
    """An engine that has its weights."""

    def __init__(
        self,
        core: EngineCore,
        eos_token_ids: frozenset[int],
        max_waiting: int,
        num_speculative_tokens: int,
        grammars: GrammarLibrary,
    ) -> None:
        info = core.info
        self.limits = ModelLimits(info.max_model_len, info.vocab_size, eos_token_ids, num_speculative_tokens)
        self.counters = core.counters
        self.state = core.state()  # as of the last report
        self.step_number = 0  # of the last report
        self._core = core
        self._grammars = grammars
        self._max_waiting = max_waiting
        self._live: dict[int, LiveRequest] = {}  # by sequence id
        self._ids = itertools.count(1)
        self._closed: PostroadError | None = None  # why nothing is admitted any more

    @property
    def num_live(self) -> int:
        """Requests that the engine thread holds, or is about to take up or to let go."""
        return len(self._live)

    @property
    def num_grammars_pending(self) -> int:
        """Grammars that are being compiled."""
        return self._grammars.num_pending

    async def sequence_of(self, request: engine_pb2.GenerateRequest) -> Sequence:
        """Checks a request, and waits for its grammar if it has one. Raises InvalidArgument, ContextLengthExceeded or
        QueueFull."""
        sequence = sequence_from_request(request, self.limits, next(self._ids), time.monotonic_ns())
        form = output_form(request)
        if form is not None:
            grammar = await self._grammars.get(form)
            sequence.grammar = grammar.state(sequence.stop.stop_token_ids)
            sequence.grammar_wait_ns = time.monotonic_ns() - sequence.arrival_ns
        return sequence

    def embedding_sequence_of(self, request: engine_pb2.EmbedRequest) -> Sequence:
        """Checks a request. Raises InvalidArgument or ContextLengthExceeded."""
        return sequence_to_embed(request, self.limits, next(self._ids), time.monotonic_ns())

    def submit(self, request: LiveRequest) -> None:
        """Admits a request. Raises QueueFull, or the error that the engine was closed with."""
        if self._closed is not None:
            raise self._closed
        num_waiting = len(self._live) - self.state.num_running
        if num_waiting >= self._max_waiting:
            raise QueueFull(f"{num_waiting} requests wait already; try again later")
        self._live[request.sequence.sequence_id] = request
        request.record.admitted = True
        self._core.add(request.sequence)

    def abort(self, request: LiveRequest) -> None:
        """Has a request ended before the next step. Harmless when it has ended, is being aborted, or fails."""
        if not request.ended:
            self._core.abort(request.sequence.sequence_id)

    def close(self, error: PostroadError) -> None:
        """Ends every request with `error` and admits no more, unless `reopen` is called."""
        self._closed = error
        for sequence_id in list(self._live):
            self._core.abort(sequence_id)
            self._end(sequence_id, FinishReason.ERROR, error)

    def reopen(self) -> None:
        """Admits requests again."""
        self._closed = None

    def on_step(self, report: StepReport) -> None:
        """Hands out what a step made."""
        self.state, self.step_number = report.state, report.number
        live = self._live
        for output in report.outputs:
            request = live.get(output.sequence.sequence_id)
            if request is None:  # ended by `close` while the step ran
                continue
            if output.prompt_logprobs is not None:
                request.on_prompt_logprobs(output.prompt_logprobs)
            if output.token_ids:
                request.on_tokens(output.token_ids, output.logprobs)
            if output.finish_reason is FinishReason.ERROR:
                self._end_by_grammar(output.sequence)
            elif output.finish_reason is not None:
                self._end(output.sequence.sequence_id, output.finish_reason, None)
        for sequence_id in report.cancelled:
            self._end(sequence_id, FinishReason.CANCELLED, None)
        if report.failed:
            at_fault = report.error.sequence_ids if isinstance(report.error, BrokenSequencesError) else frozenset()
            for sequence in report.failed:
                error: PostroadError = EngineFailed("a step of the engine failed; the request may be sent again")
                if sequence.sequence_id in at_fault:
                    error = Internal("the model gives no finite logits or states for this request")
                self._end(sequence.sequence_id, FinishReason.ERROR, error)

    def _end_by_grammar(self, sequence: Sequence) -> None:
        """Its grammar cannot go on. Others may have more luck with one that is compiled anew."""
        assert sequence.grammar is not None
        form = sequence.grammar.form
        self._grammars.discard(form)
        reason = f"the output's form cannot be followed any further: {sequence.grammar.failure}"
        self._end(sequence.sequence_id, FinishReason.ERROR, InvalidArgument(reason, form.param))

    def _end(self, sequence_id: int, reason: FinishReason, error: PostroadError | None) -> None:
        request = self._live.pop(sequence_id, None)
        if request is not None:
            request.ended = True
            request.on_end(reason, error)
            # After the handlers that it has woken: they send the end, which nobody shall wait for longer.
            asyncio.get_running_loop().call_soon(request.record.ended, request.sequence, reason, error)
