"""aiperf, an established load tool, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.figures import Figures, RunFailed
from tests.bench.peers.environments import environment
from tests.bench.scenarios import Scenario

PACKAGES = ("aiperf==0.13.0",)


class Aiperf:
    """Puts scenarios on a server. `tokenizer` is the folder of the served model's tokenizer."""

    def __init__(self, folder: Path, url: str, model: str, tokenizer: Path) -> None:
        python = environment(folder, PACKAGES)
        self._program = python.parent / "aiperf"
        self._target = ("--url", url, "--model", model, "--tokenizer", str(tokenizer))

    def run(self, scenario: Scenario, seed: int) -> Figures:
        """One run. Raises RunFailed."""
        with tempfile.TemporaryDirectory() as folder:
            flags = [*self._target, *arguments(scenario, seed), "--artifact-dir", folder]
            done = subprocess.run([self._program, "profile", *flags], capture_output=True, text=True, check=False)
            report = Path(folder) / "profile_export_aiperf.json"
            if done.returncode != 0 or not report.exists():
                raise RunFailed((done.stdout + done.stderr)[-2000:])
            return figures(scenario, json.loads(report.read_text()))


def arguments(scenario: Scenario, seed: int) -> list[str]:
    """The scenario in aiperf's words, with as few processes as it can do with."""
    values: dict[str, object] = {
        "endpoint-type": "completions",
        "extra-inputs": "ignore_eos:true",
        "concurrency": scenario.streams,
        "request-count": scenario.requests,
        "num-dataset-entries": scenario.requests,
        "isl": scenario.prompt_tokens - scenario.shared_tokens,
        "isl-stddev": 0,
        "osl": scenario.output_tokens,
        "random-seed": seed % 2**32,
        "workers-max": 1,
        "record-processors": 1,
        "ui": "none",
    }
    if scenario.shared_tokens:
        values |= {"prompt-prefix-length": scenario.shared_tokens, "prompt-prefix-pool-size": 1}
    switches = ("streaming", "use-server-token-count", "no-gpu-telemetry", "no-server-metrics")
    named = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    return [*named, *(f"--{name}" for name in switches)]


def figures(scenario: Scenario, report: Mapping[str, Any]) -> Figures:
    """Of the report that aiperf leaves. Raises RunFailed unless every request was answered in full."""
    answered = report["request_count"]["avg"]
    tokens = report["output_sequence_length"]["avg"]
    if (answered, tokens) != (scenario.requests, scenario.output_tokens):
        raise RunFailed(f"{answered:g} of {scenario.requests} requests, {tokens:g} of {scenario.output_tokens} tokens")
    first = report["time_to_first_token"]["p50"]
    gaps = report.get("inter_token_latency")
    return Figures(
        output_rate=report["output_token_throughput"]["avg"],
        prompt_rate=scenario.prompt_tokens / first * 1e3,
        first_token_ms=first,
        decode_rate=1e3 / gaps["p50"] if gaps else None,
        gap_p50_ms=gaps["p50"] if gaps else None,
        gap_p99_ms=gaps["p99"] if gaps else None,
    )
