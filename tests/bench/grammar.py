"""`python -m tests.bench.grammar`: what a form costs per token, at 8 streams of the real default model.

Rounds without and with forms take turns. Each stream has a schema of its own, compiled before the clock starts, and a
round begins with fresh states. A step's time is the engine thread's: planning, forward pass, masks, sampling.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import structlog

from services.engine.core import EngineCore, StepReport
from services.engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from services.engine.grammar.form import OutputForm
from services.engine.plan import SamplingParams, StopParams
from services.engine.scheduler.sequence import Sequence
from services.engine.settings import EngineSettings
from services.engine.startup import load_engine
from tests.support.engines import default_files, default_tokenizer

PROMPT = "List some people as JSON."


def schema(number: int) -> dict[str, Any]:
    """A list of records that is not complete before the round is over."""
    properties = {
        f"name_{number}": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": number, "maximum": 120},
        "mail": {"type": "string", "pattern": "^[a-z]{2,12}@[a-z]{2,12}[.](com|org)$"},
        "tags": {"type": "array", "items": {"enum": ["a", "b", f"c{number}"]}, "maxItems": 4},
        "note": {"type": "string"},
    }
    record = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "array", "items": record, "minItems": 1000}


class Round:
    """Steps in which all streams decode, until each has its tokens."""

    def __init__(self, core: EngineCore, sequences: list[Sequence]) -> None:
        self.step_seconds: list[float] = []
        self._core = core
        self._left = {sequence.sequence_id for sequence in sequences}
        self._streams = len(sequences)
        for sequence in sequences:
            core.add(sequence)
        core.run(self._report)

    def _report(self, report: StepReport) -> None:
        assert report.error is None, report.error
        if report.num_tokens == self._streams == len(report.outputs):
            self.step_seconds.append(report.seconds)
        self._left -= {out.sequence.sequence_id for out in report.outputs if out.finish_reason is not None}
        if not self._left:
            self._core.stop()


def sequences(ids: Iterator[int], grammars: list[CompiledGrammar | None], tokens: int) -> list[Sequence]:
    """A stream per grammar. They never end by themselves."""
    prompt = default_tokenizer().encode(PROMPT).ids
    made = []
    for grammar in grammars:
        sequence = Sequence(
            sequence_id=next(ids),
            prompt_ids=list(prompt),
            sampling=SamplingParams(seed=len(made)),
            stop=StopParams(max_tokens=tokens),
            arrival_ns=time.monotonic_ns(),
        )
        if grammar is not None:
            sequence.grammar = grammar.state(frozenset())
        made.append(sequence)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="per stream and round")
    parser.add_argument("--rounds", type=int, default=5, help="with and without, each")
    options = parser.parse_args()

    files = default_files()
    core = load_engine(EngineSettings(num_pages=1024, metrics_port=0), lambda _: None, structlog.get_logger())
    compiler = GrammarCompiler(files.tokenizer_files["tokenizer.json"], files.vocab_size, files.eos_token_ids)
    forms = [OutputForm("json_schema", json.dumps(schema(number))) for number in range(options.streams)]
    began = time.perf_counter()
    grammars: list[CompiledGrammar | None] = [compiler.compile(form) for form in forms]
    print(f"compiled {len(forms)} schemas in {(time.perf_counter() - began) * 1e3:.1f} ms")

    ids = count(1)
    times: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(options.rounds + 1):
        for name, used in (("without", [None] * options.streams), ("with", grammars)):
            seconds = Round(core, sequences(ids, used, options.tokens)).step_seconds
            if number > 0:  # the first round warms up
                times[name] += seconds
    core.close()
    for name, seconds in times.items():
        p50, mean = statistics.median(seconds) * 1e3, statistics.mean(seconds) * 1e3
        print(f"{name:8} {len(seconds)} steps: p50 {p50:.2f} ms, mean {mean:.2f} ms")
    for name, figure in (("p50", statistics.median), ("mean", statistics.mean)):
        print(f"ratio of {name}: {figure(times['with']) / figure(times['without']):.3f}")


if __name__ == "__main__":
    main()
