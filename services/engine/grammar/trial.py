"""A form's first compilation, in a process of its own that may take too long, too much memory, or end in a crash.

llguidance's limits do not bound all of its work, and a thread cannot be ended. The process ends by itself when its CPU
time is over, also if the engine is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from services.common.errors import InvalidArgument
from services.engine.grammar.form import OutputForm

CPU_SECONDS = 2.0  # without reading the vocabulary
MEMORY_MIB = 256  # beyond what the process has when it begins
_WALL_SECONDS = 30.0  # on a busy machine


@dataclass(frozen=True, slots=True)
class Trial:
    """Tries forms for one model. Each trial takes half a second, most of it to read the vocabulary."""

    tokenizer_json: bytes
    vocab_size: int
    eos_token_ids: frozenset[int]

    def run(self, form: OutputForm) -> int:
        """The bytes that the form takes, at most. Raises InvalidArgument for what is refused or over a limit."""
        head = {
            "kind": form.kind,
            "text": form.text,
            "vocab_size": self.vocab_size,
            "eos_token_ids": sorted(self.eos_token_ids),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "services.engine.grammar.trial_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        with process:
            try:
                output, errors = process.communicate(
                    json.dumps(head).encode() + b"\n" + self.tokenizer_json, _WALL_SECONDS
                )
            except subprocess.TimeoutExpired:
                process.kill()
                raise _over(form, f"{_WALL_SECONDS:g} s") from None
        return _outcome(form, process.returncode, output, errors)


def _outcome(form: OutputForm, status: int, output: bytes, errors: bytes) -> int:
    match -status:
        case 0:
            answer: dict[str, Any] = json.loads(output)
            if "message" in answer:
                raise InvalidArgument(answer["message"], answer["param"])
            return int(answer["num_bytes"])
        case signal.SIGPROF | signal.SIGXCPU:
            raise _over(form, f"{CPU_SECONDS:g} s of CPU time")
        case signal.SIGABRT | signal.SIGKILL:  # memory that is not there aborts the process
            raise _over(form, f"{MEMORY_MIB} MiB of memory")
        case signal.SIGSEGV | signal.SIGBUS:
            raise InvalidArgument("it has too many parts one within or after the other to compile", form.param)
        case _:
            raise RuntimeError(f"the trial of a form ended with {status}: {errors[-500:].decode(errors='replace')}")


def _over(form: OutputForm, limit: str) -> InvalidArgument:
    return InvalidArgument(f"it takes more than {limit} to compile", form.param)
