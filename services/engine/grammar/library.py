"""The compiled grammars of an engine: each form is compiled once, off the event loop and off the engine thread."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from services.common.errors import InvalidArgument, QueueFull
from services.engine.grammar.bounded import BoundedCompiler, is_costly
from services.engine.grammar.compiler import CompiledGrammar
from services.engine.grammar.form import OutputForm
from services.engine.metrics import EngineMetrics

MAX_PENDING = 64  # forms that are compiled or wait for it
MAX_COSTLY = 8  # of these, forms that may take seconds
THREADS = 2  # for either kind: nobody's form waits for the costly ones but those themselves


@dataclass(slots=True, eq=False)
class _Compilation:
    """A form on its way."""

    task: asyncio.Task[CompiledGrammar]
    started: bool = False


class GrammarLibrary:
    """All methods are called on the event loop. Grammars stay while they fit, least recently used ones go first."""

    def __init__(
        self, make_compiler: Callable[[], BoundedCompiler], cache_bytes: int, timeout: float, metrics: EngineMetrics
    ) -> None:
        """`make_compiler` is called in a thread for the first grammar; what it raises is told to all requests that have
        one. timeout: seconds that a request waits for its grammar.
        """
        self._make_compiler = make_compiler
        self._cache_bytes = cache_bytes
        self._timeout = timeout
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
        self._costly_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="costly-grammar")
        self._num_costly = 0
        self._compiler: Future[BoundedCompiler] | None = None
        self._pending: dict[OutputForm, _Compilation] = {}
        self._cached: OrderedDict[OutputForm, CompiledGrammar] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_pending(self) -> int:
        """Forms that are being compiled."""
        return len(self._pending)

    async def get(self, form: OutputForm) -> CompiledGrammar:
        """The form's grammar; compiles it unless it is there. Raises InvalidArgument or QueueFull."""
        grammar = self._cached.get(form)
        self._metrics.grammar_looked_up(hit=grammar is not None)
        if grammar is not None:
            self._cached.move_to_end(form)
            return grammar
        compilation = self._pending.get(form) or self._begin(form)
        try:
            # A caller that leaves does not end what others wait for.
            return await asyncio.wait_for(asyncio.shield(compilation.task), self._timeout)
        except TimeoutError:
            if not compilation.started:
                raise QueueFull("too many grammars are being compiled; try again later") from None
            raise InvalidArgument(f"it takes more than {self._timeout:g} s to compile", form.param) from None

    def discard(self, form: OutputForm) -> None:
        """Forgets a grammar that failed: its states share what they have computed."""
        grammar = self._cached.pop(form, None)
        if grammar is not None:
            self._num_bytes -= grammar.num_bytes

    def close(self) -> None:
        """Compiles no more; what is in a thread now runs to its end there."""
        for pool in (self._pool, self._costly_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, form: OutputForm) -> _Compilation:
        if len(self._pending) >= MAX_PENDING:
            raise QueueFull(f"{MAX_PENDING} grammars are being compiled; try again later")
        compilation = _Compilation(asyncio.create_task(self._compile(form)))
        self._pending[form] = compilation
        compilation.task.add_done_callback(lambda task: self._finish(form, task))
        return compilation

    async def _compile(self, form: OutputForm) -> CompiledGrammar:
        compiler = self._compiler = self._compiler or self._pool.submit(self._make_compiler)
        run = asyncio.get_running_loop().run_in_executor
        work = partial(self._work, self._pending[form], form, compiler)
        if not await run(self._pool, is_costly, form):
            return await run(self._pool, work, False)
        if self._num_costly >= MAX_COSTLY:
            raise QueueFull(f"{MAX_COSTLY} grammars that may take long are being compiled; try again later")
        self._num_costly += 1
        try:
            return await run(self._costly_pool, work, True)
        finally:
            self._num_costly -= 1

    def _work(
        self, compilation: _Compilation, form: OutputForm, future: Future[BoundedCompiler], costly: bool
    ) -> CompiledGrammar:
        """In a thread, where the maps of this object are not to be read."""
        compilation.started = True
        began = time.perf_counter()
        compiler = _result(future, form)
        grammar = compiler.compile_costly(form) if costly else compiler.compile(form)
        self._metrics.grammar_compiled(time.perf_counter() - began)
        return grammar

    def _finish(self, form: OutputForm, task: asyncio.Task[CompiledGrammar]) -> None:
        del self._pending[form]
        if task.cancelled() or task.exception() is not None:
            return
        grammar = task.result()
        self._cached[form] = grammar
        self._num_bytes += grammar.num_bytes
        while self._num_bytes > self._cache_bytes:
            _, oldest = self._cached.popitem(last=False)
            self._num_bytes -= oldest.num_bytes


def _result(compiler: Future[BoundedCompiler], form: OutputForm) -> BoundedCompiler:
    try:
        return compiler.result()
    except Exception as error:  # of a package that promises no types
        reason = f"structured output is not possible with this model's tokenizer: {error}"
        raise InvalidArgument(reason, form.param) from error
