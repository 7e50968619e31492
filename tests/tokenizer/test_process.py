"""`python -m services.tokenizer` as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

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


def run(code: str, *args: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True, text=True).stdout


def test_no_torch_is_imported() -> None:
    assert run(IMPORTED) == "[]\n"


def test_no_torch_is_imported_by_use(files: dict[str, bytes], tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert run(LOADED, str(tmp_path)) == "False\n"


async def test_it_starts_serves_and_stops_on_sigterm() -> None:
    async with scripted_engine(saying("Hello")) as engine:
        argv = [sys.executable, "-m", "services.tokenizer", "--port", "0", "--metrics-port", "0"]
        with Program([*argv, "--engine", address(engine)]) as program:
            await asyncio.to_thread(program.wait_for_line, lambda line: '"tokenizer files loaded"' in line, "loaded")
            program.send(signal.SIGTERM)
            assert program.wait() == 0
            assert '"event": "stopped"' in program.text
