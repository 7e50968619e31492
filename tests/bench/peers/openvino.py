"""OpenVINO GenAI through its Python API, in a process of its own: no HTTP, which favours it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.bench.models import model_folder
from tests.bench.peers.base import Peer, ServerProcess
from tests.bench.peers.environments import TORCH, environment
from tests.bench.scenarios import Scenario, Width
from tests.bench.sse_client import Answer

REPOSITORY = Path(__file__).resolve().parents[3]
# The exporter's own choice for SmolLM2, whose rows 128 does not divide.
EXPORT_FLAGS = {
    ("SmolLM2-135M", "int4"): ("--ratio", "1.0", "--group-size", "64"),
    ("Qwen3-0.6B", "int4"): ("--ratio", "1.0"),
}


class OpenVino(Peer):
    name: ClassVar[str] = "OpenVINO"
    version: ClassVar[str] = "2026.4.1.0"
    formats: ClassVar[Mapping[Width, Sequence[str]]] = {"bf16": ("fp16",), "8-bit": ("int8",), "4-bit": ("int4",)}

    @property
    def _environment(self) -> Path:
        return self.root / "openvino"

    def set_up(self) -> None:
        packages = (f"openvino-genai=={self.version}", "optimum-intel==2.2.0", "nncf==3.4.0", TORCH)
        environment(self._environment, packages, without=("torchvision",))

    def convert(self, model: str, weight_format: str) -> Path:
        """fp16 is computed in bf16 where the processor has it."""
        folder = self.root / "openvino-models" / f"{model}-{weight_format}"
        if not folder.exists():
            unfinished = folder.with_suffix(".part")
            export = [
                *(self._environment / "bin" / "optimum-cli", "export", "openvino"),
                *("--task", "text-generation-with-past", "--model", model_folder(self.root / "models", model)),
                *("--weight-format", weight_format, *EXPORT_FLAGS.get((model, weight_format), ())),
            ]
            subprocess.run([*export, unfinished], check=True)
            unfinished.rename(folder)
        return folder

    def server(self, model: str, weight_format: str) -> OpenVinoServer:
        python = self._environment / "bin" / "python"
        argv = [str(python), "-m", "tests.bench.peers.openvino_worker", str(self.convert(model, weight_format))]
        env = {"PYTHONPATH": str(REPOSITORY)}
        return OpenVinoServer(argv, self.root / "logs" / f"{self.name}.log", env)


class OpenVinoServer(ServerProcess):
    """The worker, which reads runs and writes answers as lines of JSON."""

    def run(self, scenario: Scenario, seed: int) -> Sequence[Answer]:
        assert self._process.stdin is not None
        run = {
            "prompts": scenario.prompts(seed),
            "streams": scenario.streams,
            "output_tokens": scenario.output_tokens,
        }
        self._process.stdin.write(json.dumps(run).encode() + b"\n")
        self._process.stdin.flush()
        return [Answer(**answer) for answer in self._read_line()]

    def _stdout(self, log: int) -> int:
        return subprocess.PIPE

    def _is_ready(self) -> bool:
        return self._read_line() == "ready"

    def _read_line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self.failure("it ended")
        return json.loads(line)
