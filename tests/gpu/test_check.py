"""The check for a real GPU, as far as a CPU goes: small sizes, and a stand-in for flashinfer."""

from __future__ import annotations

import pytest
import torch

from services.engine.executor.attention import TorchAttention
from tests.gpu import check, correctness, ranks, target
from tests.gpu.rows import Row, table
from tests.gpu.variants import TORCH, Variant


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([]) == 2
    assert "no GPU, nothing was checked: " in capsys.readouterr().out


def test_the_whole_check_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--device", "cpu"]) == 0
    title, _, *rows, _, _ = capsys.readouterr().out.splitlines()
    assert "no figure means anything" in title
    cells = [row.split(" | ") for row in rows if row.endswith("ok |")]
    whats = [row[0].removeprefix("| ") for row in cells]
    for name in ("qwen3, 8 heads, 2 KV heads", "gemma2"):
        assert [what.removeprefix(f"{name}: ") for what in whats if what.startswith(name)] == [
            "float32, tokens as transformers",
            "bfloat16, torch",
            "fp8, torch",
            "bfloat16, flashinfer",
            "bfloat16, flashinfer, graphs",
            "fp8, flashinfer, graphs, fp8",
        ]
    assert [what.partition(":")[0] for what in whats if "6 requests of 2 to 9 tokens" in what] == [
        "torch",
        "flashinfer",
        "flashinfer, graphs",
        "flashinfer, graphs, overlap",
        "flashinfer, graphs, fp8",
    ]
    assert [what for what in whats if what.startswith("sampling")] == [
        f"sampling, {limits}: tokens kept as by sorting" for limits in ("top_k", "top_p", "both")
    ]
    assert sum("beside the computation" in what for what in whats) == 1
    # Overlapped steps are no other steps; two are of two ranks.
    assert sum("decode of 3 after 20 tokens" in row for row in rows) == 4 + 2
    assert [what for what in whats if "rank" in what] == [
        "2 ranks, float32, torch: greedy tokens as of one rank",
        "2 ranks, bfloat16, flashinfer, graphs: greedy tokens as of one rank",
        "a rank that does not come, given up after 1 s",
    ]


def test_a_backend_that_is_wrong_fails() -> None:
    class Blind(TorchAttention):
        """Takes the window of no layer into account."""

        def __init__(self, pool: object, config: object) -> None:
            super().__init__(pool, config)  # type: ignore[arg-type]
            self._windows = [None for _ in self._windows]

    name = "mistral, window"
    rows = correctness.rows({"torch": TORCH, "blind": Variant(Blind)}, "cpu", {name: correctness.MODELS[name]})
    assert [row.what for row in rows if not row.passed] == [f"{name}: bfloat16, blind"]


def test_ranks_are_skipped_where_there_is_one_gpu() -> None:
    [row] = ranks.rows(None, "cuda", target.cpu().sizes)
    assert (row.found, row.passed) == ("skipped, as there is one GPU", None)


def test_the_table_shows_what_failed() -> None:
    assert table([Row("a", "1 ms", "2 ms"), Row("b", "off", passed=False)]).splitlines()[2:] == [
        "| a | 1 ms | 2 ms |  |",
        "| b | off |  | FAILED |",
    ]
