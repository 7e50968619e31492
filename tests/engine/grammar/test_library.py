"""Grammars are compiled once, kept as far as they fit, and one caller's fate is not another's."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry

from services.common.errors import InvalidArgument, QueueFull
from services.engine.grammar.bounded import BoundedCompiler
from services.engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from services.engine.grammar.form import OutputForm
from services.engine.grammar.library import MAX_COSTLY, MAX_PENDING, GrammarLibrary
from services.engine.metrics import EngineMetrics
from tests.support.polling import WAIT_SECONDS, until

MIB = 2**20


def regex(text: str) -> OutputForm:
    return OutputForm("regex", text)


def costly(number: int) -> OutputForm:
    """Costly by its length alone."""
    return OutputForm("json_schema", json.dumps({"const": number, "title": "a" * 40_000}))


class Gate:
    """Lets a real compiler begin only when a test says so."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self.opened = threading.Event()
        self._compiler = compiler

    def compile(self, form: OutputForm) -> CompiledGrammar:
        assert self.opened.wait(WAIT_SECONDS)
        return self._compiler.compile(form)


class CostlyGate(Gate):
    """Lets costly forms alone wait."""

    def compile(self, form: OutputForm) -> CompiledGrammar:
        return self._compiler.compile(form)

    def compile_costly(self, form: OutputForm) -> CompiledGrammar:
        return super().compile(form)


class Shelf:
    """A library and what its metrics say."""

    def __init__(self, make_compiler: Callable[[], object], cache_bytes: int = 64 * MIB, timeout: float = 60) -> None:
        self.registry = CollectorRegistry()
        self.library = GrammarLibrary(make_compiler, cache_bytes, timeout, EngineMetrics(self.registry))  # type: ignore[arg-type]

    def value(self, name: str) -> float:
        return self.registry.get_sample_value(f"postroad_grammar_{name}") or 0.0


@pytest.fixture
async def shelf(compiler: GrammarCompiler) -> AsyncIterator[Shelf]:
    shelf = Shelf(lambda: compiler)
    yield shelf
    assert shelf.library.num_pending == 0
    shelf.library.close()


async def test_requests_of_one_form_share_its_grammar(shelf: Shelf) -> None:
    first, *others = await asyncio.gather(*(shelf.library.get(regex("a+")) for _ in range(5)))
    assert all(other is first for other in others)
    assert await shelf.library.get(regex("a+")) is first
    assert await shelf.library.get(OutputForm("grammar", "start: /a+/")) is not first
    assert shelf.value("compile_seconds_count") == 2
    assert (shelf.value("cache_queries_total"), shelf.value("cache_hits_total")) == (7, 1)


async def test_a_refusal_is_told_to_all_who_wait_and_is_not_kept(shelf: Shelf) -> None:
    calls = [shelf.library.get(regex("[")) for _ in range(3)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, InvalidArgument) and error.param == "structured_output.regex" for error in errors)
    with pytest.raises(InvalidArgument):
        await shelf.library.get(regex("["))
    assert shelf.value("cache_hits_total") == 0


async def test_the_least_recently_used_grammars_go_when_there_is_no_room(compiler: GrammarCompiler) -> None:
    size = compiler.compile(regex("a")).num_bytes
    shelf = Shelf(lambda: compiler, cache_bytes=2 * size)
    a, b = await shelf.library.get(regex("a")), await shelf.library.get(regex("b"))
    assert await shelf.library.get(regex("a")) is a
    await shelf.library.get(regex("c"))
    assert await shelf.library.get(regex("a")) is a
    assert await shelf.library.get(regex("b")) is not b
    shelf.library.close()


async def test_one_that_is_larger_than_the_room_is_used_and_not_kept(compiler: GrammarCompiler) -> None:
    shelf = Shelf(lambda: compiler, cache_bytes=1)
    first = await shelf.library.get(regex("a"))
    assert await shelf.library.get(regex("a")) is not first
    shelf.library.close()


async def test_a_discarded_grammar_is_compiled_anew(shelf: Shelf) -> None:
    first = await shelf.library.get(regex("a"))
    shelf.library.discard(regex("a"))
    shelf.library.discard(regex("a"))
    assert await shelf.library.get(regex("a")) is not first


async def test_a_caller_that_leaves_does_not_end_the_compilation_of_others(compiler: GrammarCompiler) -> None:
    gate = Gate(compiler)
    shelf = Shelf(lambda: gate)
    leaving = asyncio.create_task(shelf.library.get(regex("a")))
    staying = asyncio.create_task(shelf.library.get(regex("a")))
    await until(lambda: shelf.library.num_pending == 1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.opened.set()
    assert (await staying).form == regex("a")
    shelf.library.close()


async def test_nobody_waits_longer_than_the_time_limit(compiler: GrammarCompiler) -> None:
    gate = Gate(compiler)
    shelf = Shelf(lambda: gate, timeout=0.05)
    calls = [shelf.library.get(regex("a" * length)) for length in range(1, 5)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    kinds = [type(error) for error in errors]
    # Two threads compile; the others' turn has not come, which is not their forms' fault.
    assert sorted(kinds, key=str) == sorted([InvalidArgument] * 2 + [QueueFull] * 2, key=str)
    gate.opened.set()
    await until(lambda: shelf.library.num_pending == 0)
    assert (await shelf.library.get(regex("a"))).form == regex("a"), "it was kept once it was there"
    shelf.library.close()


async def test_too_many_forms_at_once_are_refused(compiler: GrammarCompiler) -> None:
    gate = Gate(compiler)
    shelf = Shelf(lambda: gate)
    calls = [asyncio.create_task(shelf.library.get(regex(f"a{{{n}}}"))) for n in range(1, MAX_PENDING + 1)]
    await until(lambda: shelf.library.num_pending == MAX_PENDING)
    with pytest.raises(QueueFull):
        await shelf.library.get(regex("one more"))
    gate.opened.set()
    await asyncio.gather(*calls)
    shelf.library.close()


async def test_a_tokenizer_that_cannot_be_used_refuses_every_form() -> None:
    shelf = Shelf(lambda: GrammarCompiler(b"{}", 100, frozenset({1})))
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="not possible with this model's tokenizer"):
            await shelf.library.get(regex("a"))
    shelf.library.close()


async def test_costly_forms_keep_no_other_waiting_and_are_few(compiler: GrammarCompiler) -> None:
    gate = CostlyGate(compiler)
    shelf = Shelf(lambda: gate)
    calls = [asyncio.create_task(shelf.library.get(costly(n))) for n in range(1, MAX_COSTLY + 2)]
    refused, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert [type(call.exception()) for call in refused] == [QueueFull]
    assert (await shelf.library.get(regex("a"))).form == regex("a")
    assert shelf.library.num_pending == MAX_COSTLY
    gate.opened.set()
    await asyncio.wait(calls)
    assert sum(call.exception() is None for call in calls) == MAX_COSTLY
    shelf.library.close()


async def test_another_form_is_served_while_one_is_found_to_take_too_long(bounded_compiler: BoundedCompiler) -> None:
    shelf = Shelf(lambda: bounded_compiler)
    form = OutputForm("json_schema", json.dumps({"type": "integer", "multipleOf": 9_999_991}))
    call = asyncio.create_task(shelf.library.get(form))
    assert (await shelf.library.get(regex("a"))).form == regex("a")
    assert not call.done()
    with pytest.raises(InvalidArgument, match="it takes more than 2 s of CPU time to compile"):
        await call
    assert shelf.library.num_pending == 0
    shelf.library.close()
