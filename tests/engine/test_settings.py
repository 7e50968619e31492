"""The engine's flags."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.engine.settings import EngineSettings


def test_defaults():
    settings = EngineSettings.parse([])
    assert (settings.port, settings.metrics_port, settings.model, settings.executor) == (
        50052,
        9462,
        "default",
        "auto",
    )
    assert (settings.max_waiting, settings.kv_cache_memory, settings.num_pages) == (1024, None, None)


@pytest.mark.parametrize(("text", "expected"), [("2GiB", 2 << 30), ("512MB", 512_000_000), ("4096", 4096)])
def test_sizes_of_the_kv_pool(text, expected):
    assert EngineSettings.parse(["--kv-cache-memory", text]).kv_cache_memory == expected


def test_flags_go_before_variables(monkeypatch):
    monkeypatch.setenv("POSTROAD_ENGINE_MAX_NUM_SEQS", "7")
    monkeypatch.setenv("POSTROAD_ENGINE_MAX_MODEL_LEN", "99")
    settings = EngineSettings.parse(["--max-num-seqs", "8"])
    assert (settings.max_num_seqs, settings.max_model_len) == (8, 99)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--max-num-seqs", "600"], "max-batch-tokens"),
        (["--executor", "cuda"], "--executor"),
        (["--quantization", "int3"], "--quantization"),
        (["--quantization", "int8", "--executor", "torch"], "quantization int8 needs the native executor"),
        (["--quantization", "int4", "--executor", "scripted"], "quantization int4 needs the native executor"),
        (["--quantization", "fp8", "--executor", "native"], "quantization fp8 needs the torch executor, not native"),
        (["--kv-cache-dtype", "fp8", "--executor", "scripted"], "kv-cache-dtype fp8 needs the torch executor"),
        (
            ["--kv-cache-dtype", "fp8", "--quantization", "int8"],
            "quantization int8 needs the native executor, and kv-cache-dtype fp8 the torch executor",
        ),
        (["--kv-cache-memory", "much"], "--kv-cache-memory"),
        (["--max-waiting", "0"], "--max-waiting"),
        (["--step-ms", "-1"], "--step-ms"),
    ],
)
def test_what_cannot_work_is_refused_by_name(capsys, flags, named):
    with pytest.raises(SystemExit) as exit_:
        EngineSettings.parse(flags)
    assert exit_.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rank": 2, "leader": "a:1"}, "rank 2 must be below tensor-parallel-size, 2"),
        ({"rank": 1}, "rank 1 needs the leader"),
        ({"leader": "a:1"}, "rank 0 is the leader itself"),
        ({"local_ranks": 3}, "must be at most tensor-parallel-size"),
        ({"executor": "native"}, "tensor-parallel-size 2 needs the torch executor, not native"),
        ({"executor": "scripted"}, "tensor-parallel-size 2 needs the torch executor, not scripted"),
        (
            {"quantization": "int4"},
            "quantization int4 needs the native executor, and tensor-parallel-size 2 the torch executor",
        ),
        ({"kv_cache_dtype": "int8"}, "kv-cache-dtype int8 needs the native executor, and tensor-parallel-size 2"),
    ],
)
def test_ranks_that_cannot_be(flags, message):
    with pytest.raises(ValidationError, match=message):
        EngineSettings(tensor_parallel_size=2, **flags)
