"""`python -m services.engine.grammar.trial_process`: compiles one form under limits that end the process.

By stdin come a line of JSON, which has the form, and a tokenizer.json; the outcome leaves by stdout, as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from services.common.errors import InvalidArgument
from services.engine.grammar.compiler import GrammarCompiler
from services.engine.grammar.form import OutputForm
from services.engine.grammar.trial import CPU_SECONDS, MEMORY_MIB

_UNLIMITED_STACK = 2 * 2**20  # what a thread then has


def main() -> None:
    head = json.loads(sys.stdin.buffer.readline())
    compiler = GrammarCompiler(sys.stdin.buffer.read(), head["vocab_size"], frozenset(head["eos_token_ids"]))
    _limit()
    try:
        outcome = _outcome(compiler, OutputForm(head["kind"], head["text"]))
    except MemoryError:
        os.abort()  # as llguidance does
    print(json.dumps(outcome))


def _outcome(compiler: GrammarCompiler, form: OutputForm) -> dict[str, Any]:
    began_with = _pages()[1]
    try:
        grammar = compiler.compile(form)  # kept until its memory is counted
    except InvalidArgument as error:
        return {"message": error.message, "param": error.param}
    num_bytes = (_pages()[1] - began_with) * resource.getpagesize()
    del grammar
    return {"num_bytes": num_bytes}


def _limit() -> None:
    """From here on. The stack is half of what an engine's thread has, so that what passes here passes there."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    for what, limit in (
        (resource.RLIMIT_STACK, (_UNLIMITED_STACK if stack == resource.RLIM_INFINITY else stack) // 2),
        (resource.RLIMIT_AS, _pages()[0] * resource.getpagesize() + MEMORY_MIB * 2**20),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (limit, hard))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


def _pages() -> tuple[int, int]:
    """Of memory: all that are mapped, and those that are there."""
    size, resident = Path("/proc/self/statm").read_text().split()[:2]
    return int(size), int(resident)


if __name__ == "__main__":
    main()
