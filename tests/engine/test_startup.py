"""Which executor an engine gets, and what is in memory afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import structlog
from pydantic import ValidationError
from structlog.testing import capture_logs

from services.engine.executor.torch_executor import TorchExecutor
from services.engine.models.errors import NotCovered
from services.engine.settings import EngineSettings
from services.engine.startup import NativeNotInstalled, StartupError, load_engine
from tests.support.models import tiny_model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model_folder(tmp_path_factory.mktemp("model"), "LlamaForCausalLM")


@pytest.fixture
def no_native(monkeypatch):
    """As where `postroad_native` is not installed."""
    for name in [name for name in sys.modules if name.startswith("services.engine") and "native" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "postroad_native", None)


def load(folder, **settings):
    """The engine's core and what was logged."""
    defaults = {"model": str(folder), "threads": 1, "dtype": "float32", "num_pages": 8, "max_model_len": 128}
    with capture_logs() as logs:
        core = load_engine(EngineSettings(**defaults | settings), lambda model: None, structlog.get_logger())
    core.close()
    return core, logs


def test_auto_says_why_it_takes_torch_where_native_is_not_installed(folder, no_native):
    core, logs = load(folder, executor="auto")
    assert isinstance(core._executor, TorchExecutor)
    [line] = logs
    assert (line["event"], line["executor"], line["log_level"]) == ("executor chosen", "torch", "warning")
    assert "not installed" in line["reason"]
    assert "make native" in line["reason"]


def test_native_is_refused_where_it_is_not_installed(folder, no_native):
    with pytest.raises(NativeNotInstalled, match="make native"):
        load(folder, executor="native")


def test_auto_takes_native_and_says_so(folder):
    pytest.importorskip("postroad_native")
    core, logs = load(folder, executor="auto")
    assert type(core._executor).__name__ == "NativeExecutor"
    packed, chosen = logs
    assert (packed["event"], packed["linear_layers"]) == ("weights packed", {"none": 13})
    assert (chosen["event"], chosen["executor"]) == ("executor chosen", "native")


def test_auto_names_what_native_does_not_cover(folder):
    pytest.importorskip("postroad_native")
    core, logs = load(folder, executor="auto", page_size=8)
    assert isinstance(core._executor, TorchExecutor)
    assert "page-size 8" in logs[0]["reason"]
    with pytest.raises(NotCovered) as error:
        load(folder, executor="native", page_size=8)
    assert (error.value.feature, error.value.value) == ("page-size", 8)


@pytest.mark.parametrize("asked", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}])
def test_auto_takes_torch_for_what_only_it_has(folder, asked):
    core, [line] = load(folder, executor="auto", **asked)
    assert isinstance(core._executor, TorchExecutor)
    [(name, value)] = asked.items()
    assert line["reason"] == f"{name.replace('_', '-')} {value} is asked for"


def test_fp8_is_refused_for_a_model_whose_sizes_it_does_not_take(folder, tmp_path):
    odd = shutil.copytree(folder, tmp_path / "odd")
    config = json.loads((odd / "config.json").read_text()) | {"intermediate_size": 88}
    (odd / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartupError, match="multiples of 16, unlike intermediate_size 88"):
        load(odd, quantization="fp8")


def test_the_native_kv_pool_s_memory_decides_over_its_pages_and_these_over_the_length(folder):
    pytest.importorskip("postroad_native")
    page_bytes = 2 * 3 * 16 * 2 * 16 * 4  # keys and values, layers, tokens, KV heads, elements, float32
    core, _ = load(folder, executor="native", num_pages=None, kv_cache_memory=page_bytes * 5 + 1)
    assert (core.info.num_pages, core.info.max_model_len) == (5, 80)
    core, _ = load(folder, executor="native", num_pages=None, kv_cache_memory=page_bytes * 5, dtype="bfloat16")
    assert core.info.num_pages == 10
    with pytest.raises(StartupError, match="do not hold one page"):
        load(folder, executor="native", num_pages=None, kv_cache_memory=page_bytes - 1)
    core, _ = load(folder, executor="native", max_model_len=50)
    assert core.info.max_model_len == 50


@pytest.mark.parametrize("executor", ["scripted", "torch"])
def test_a_kv_pool_that_shortens_the_longest_request_is_told(folder, executor):
    _, logs = load(folder, executor=executor, num_pages=1, page_size=16)
    told = {"event": "the KV pool holds less than the longest request", "log_level": "warning"}
    assert {**told, "max_model_len": 16, "instead_of": 128} in logs
    _, logs = load(folder, executor=executor, num_pages=8, page_size=16)
    assert [line for line in logs if line["log_level"] == "warning"] == []
    _, logs = load(folder, executor=executor, num_pages=8, page_size=16, max_model_len=None)
    assert {**told, "max_model_len": 128, "instead_of": 2048} in logs


@pytest.mark.parametrize("pool", [{"num_pages": 1 << 40}, {"num_pages": None, "kv_cache_memory": 1 << 50}])
@pytest.mark.parametrize("executor", ["native", "torch"])
def test_a_kv_pool_larger_than_the_memory_is_refused_by_name(folder, executor, pool):
    [name] = (name.replace("_", "-") for name, value in pool.items() if value)
    with pytest.raises(StartupError, match=rf"^{name}.* GiB is more than all of this machine's"):
        load(folder, executor=executor, **pool)


def test_int8_keys_and_values_take_less_memory_and_are_refused_by_torch(folder):
    pytest.importorskip("postroad_native")
    page_bytes = 3 * 16 * 2 * (2 * 16 + 2 * 4)  # layers, tokens, KV heads, elements and scales of keys and values
    pool = {"num_pages": None, "kv_cache_memory": page_bytes * 5}
    for dtype in ("float32", "bfloat16"):
        core, _ = load(folder, executor="auto", kv_cache_dtype="int8", dtype=dtype, **pool)
        assert (type(core._executor).__name__, core.info.num_pages) == ("NativeExecutor", 5)
    with pytest.raises(ValidationError, match="kv-cache-dtype int8 needs the native executor, not torch"):
        load(folder, executor="torch", kv_cache_dtype="int8")


def test_a_kv_pool_of_another_type_than_the_weights_is_refused_by_name(folder):
    with pytest.raises(StartupError, match="kv-cache-dtype bfloat16"):
        load(folder, executor="auto", kv_cache_dtype="bfloat16")
    core, _ = load(folder, executor="torch", kv_cache_dtype="float32")
    assert core.info.num_pages == 8


def test_an_engine_with_the_native_executor_has_neither_torch_nor_transformers():
    pytest.importorskip("postroad_native")
    code = (
        "import sys, structlog, services.engine.__main__;"
        "from services.engine.settings import EngineSettings; from services.engine.startup import load_engine;"
        "settings = EngineSettings(executor='native', num_pages=8, threads=1);"
        "load_engine(settings, lambda model: None, structlog.get_logger());"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
