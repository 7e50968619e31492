"""`python -m services.tokenizer` as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engines import address, saying, scripted_engine
from tests.support.processes import Program

IMPORTED = """
import sys
import services.tokenizer.__main__
print(sorted(name for name in ("torch", "tensorflow", "jax", "services.engine") if name in sys.modules))
"""
LOADED = """
import sys
from pathlib import Path
from services.tokenizer.chat import parse_chat
from services.tokenizer.model_tokenizer import ModelTokenizer
tokenizer = ModelTokenizer.from_files({path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()})
prompt = tokenizer.render(parse_chat('[{"role": "user", "content": "x"}]', '[{"type": "function"}]'))
tokenizer.encode(prompt, add_special_tokens=False)
print("torch" in sys.modules)
"""

ENCODED = """
import asyncio
import sys
from pathlib import Path
from services.tokenizer.model_tokenizer import ModelTokenizer
from services.tokenizer.worker_pool import WorkerPool

def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256

async def main() -> None:
    tokenizer = ModelTokenizer.from_files({path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()})
    text, pool = "a b " * (1 << 18), WorkerPool(1, 1, 1 << 20)
    before = resident_mib()
    assert await pool.run(len(text), lambda: len(tokenizer.encode(text, add_special_tokens=False))) > len(text) // 2
    print(resident_mib() - before)

asyncio.run(main())
"""


def run(code: str, *args: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True, text=True).stdout


def test_no_torch_is_imported() -> None:
    assert run(IMPORTED) == "[]\n"


def test_no_torch_is_imported_by_use(files: dict[str, bytes], tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert run(LOADED, str(tmp_path)) == "False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_a_long_text_leaves_no_memory_behind(files: dict[str, bytes], tmp_path: Path) -> None:
    """One MiB takes about 170 MiB while it is encoded; without a word to the allocator, 120 of them stay."""
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert int(run(ENCODED, str(tmp_path))) < 40


async def test_it_starts_serves_and_stops_on_sigterm() -> None:
    async with scripted_engine(saying("Hello")) as engine:
        argv = [sys.executable, "-m", "services.tokenizer", "--port", "0", "--metrics-port", "0"]
        with Program([*argv, "--engine", address(engine)]) as program:
            await asyncio.to_thread(program.wait_for_line, lambda line: '"tokenizer files loaded"' in line, "loaded")
            program.send(signal.SIGTERM)
            assert program.wait() == 0
            assert '"event": "stopped"' in program.text
