"""Comparisons as Markdown."""

from __future__ import annotations

from tests.bench.results import Comparison
from tests.bench.scenarios import SCENARIOS
from tests.bench.tables import table


def test_a_table() -> None:
    decode = Comparison(
        scenario=SCENARIOS["decode"],
        width="bf16",
        medians={"llama.cpp BF16": 78.64, "Postroad bf16": 101.0, "vLLM bfloat16": 46.6},
        is_clean=True,
        best_peer="llama.cpp BF16",
        ratio=1.284,
        bandwidth_share=0.914,
    )
    prefill = Comparison(
        scenario=SCENARIOS["prefill"],
        width="bf16",
        medians={"Postroad bf16": 1502.4, "llama.cpp BF16": 756.2},
        is_clean=False,
        best_peer="llama.cpp BF16",
        ratio=1.98,
    )
    assert table([decode, prefill]).splitlines() == [
        "|  | Postroad bf16 | llama.cpp BF16 | vLLM bfloat16 | ours ÷ best peer | goal | of the bandwidth |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| decode, 1 stream (128 in, 128 out), tok/s | 101.0 | **78.6** | 46.6 | 1.28 | 1.2 | 91% |",
        "| prefill of 1024, prompt tok/s | 1502 | **756** | – | ~1.98 | 1.05 | – |",
    ]


def test_peers_alone() -> None:
    row = Comparison(SCENARIOS["decode"], "8-bit", {"llama.cpp Q8_0": 120.0}, True, "llama.cpp Q8_0", None)
    assert table([row]).splitlines()[-1] == ("| decode, 1 stream (128 in, 128 out), tok/s | **120.0** | – | 1.4 | – |")
