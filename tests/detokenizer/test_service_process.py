"""`python -m services.detokenizer` as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from tests.support.engines import address, saying, scripted_engine
from tests.support.processes import Program

IMPORTED = """
import sys
import services.detokenizer.__main__
print([name for name in ("torch", "transformers", "jinja2", "services.engine") if name in sys.modules])
"""


def test_neither_torch_nor_transformers_is_imported() -> None:
    output = subprocess.run([sys.executable, "-c", IMPORTED], check=True, capture_output=True, text=True).stdout
    assert output == "[]\n"


@pytest.mark.parametrize("transport", ["frames", "calls"])
async def test_it_starts_serves_and_stops_on_sigterm(transport: str) -> None:
    async with scripted_engine(saying("Hello")) as engine:
        argv = [sys.executable, "-m", "services.detokenizer", "--port", "0", "--metrics-port", "0"]
        with Program([*argv, "--engine", address(engine), "--engine-transport", transport]) as program:
            await asyncio.to_thread(program.wait_for_line, lambda line: '"tokenizer files loaded"' in line, "loaded")
            program.send(signal.SIGTERM)
            assert program.wait() == 0
            assert '"event": "stopped"' in program.text
