"""The check for a real GPU, as far as a CPU goes: small sizes, and a stand-in for flashinfer."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from services.engine.executor.attention import TorchAttention
from services.engine.executor.flashinfer_attention import FlashInferAttention
from tests.engine.executor.flashinfer_on_cpu import FlashInferOnCpu
from tests.engine.executor.recorder_on_cpu import RecorderOnCpu
from tests.engine.models.reference import FAMILIES
from tests.gpu import check, correctness, speed
from tests.gpu.rows import Row, table
from tests.gpu.variants import TORCH, Variant

FLASHINFER = partial(FlashInferAttention, library=FlashInferOnCpu(), workspace_bytes=64)
VARIANTS = {
    "torch": TORCH,
    "flashinfer": Variant(FLASHINFER),
    "flashinfer, graphs": Variant(FLASHINFER, RecorderOnCpu),
    "flashinfer, graphs, overlap": Variant(FLASHINFER, RecorderOnCpu, overlaps=True),
    "flashinfer, graphs, fp8": Variant.in_fp8(FLASHINFER, RecorderOnCpu),
}
SMALL = speed.Sizes(FAMILIES["llama"], 1 << 16, 64, (1, 3), 20, 40, 1, 6, 2, 9, 4, 16)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main() == 2
    assert "no GPU, nothing was checked: " in capsys.readouterr().out


def test_all_variants_are_correct() -> None:
    models = {name: correctness.MODELS[name] for name in ("qwen3, 8 heads, 2 KV heads", "gemma2")}
    rows = list(correctness.rows(VARIANTS, "cpu", models))
    assert len(rows) == 6 * len(models)
    assert [row for row in rows if not row.passed] == []


def test_a_backend_that_is_wrong_fails() -> None:
    class Blind(TorchAttention):
        """Takes the window of no layer into account."""

        def __init__(self, pool: object, config: object) -> None:
            super().__init__(pool, config)  # type: ignore[arg-type]
            self._windows = [None for _ in self._windows]

    name = "mistral, window"
    rows = correctness.rows({"torch": TORCH, "blind": Variant(Blind)}, "cpu", {name: correctness.MODELS[name]})
    assert [row.what for row in rows if not row.passed] == [f"{name}: bfloat16, blind"]


def test_steps_and_the_workload_are_measured() -> None:
    rows = list(speed.rows(VARIANTS, "cpu", SMALL, lambda model, variant: variant.executor(model, 12, 4, 4)))
    assert len(rows) == 2 + 4 * 2 + 2 + 5
    loads = [row for row in rows if row.passed is not None]
    assert [row.what for row in loads] == [f"{name}: 6 requests of 2 to 9 tokens in and out" for name in VARIANTS]
    assert all(row.passed for row in loads)


def test_the_table_shows_what_failed() -> None:
    assert table([Row("a", "1 ms", "2 ms"), Row("b", "off", passed=False)]).splitlines()[2:] == [
        "| a | 1 ms | 2 ms |  |",
        "| b | off |  | FAILED |",
    ]
