"""Weights as numpy arrays: what the native executor packs. Values are tested with torch in test_weights.py."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import save_file

from services.engine.loading.arrays import iter_arrays, iter_stored
from services.engine.loading.errors import DamagedFile, UnsupportedQuantization
from services.engine.loading.gguf_blocks import GgufBlocks
from services.engine.loading.gguf_weights import StoredBlocks, stored_blocks
from services.engine.loading.safetensors_file import SafetensorsFile
from services.engine.loading.source import ModelSource
from tests.engine.loading.gguf_files import model_metadata, write_gguf


def _write(path: Path, header: dict[str, Any], data: bytes, padding: int = 0) -> Path:
    text = json.dumps(header).encode() + b" " * padding
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def _entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_bfloat16_comes_as_its_bits(tmp_path: Path) -> None:
    tensor = torch.randn(6, 5).bfloat16()
    save_file({"a": tensor}, tmp_path / "model.safetensors")
    [(name, array)] = iter_arrays(ModelSource("safetensors", tmp_path, "x"), {})
    assert (name, array.dtype) == ("a", np.uint16)
    assert np.array_equal(array, tensor.view(torch.uint16).numpy())
    path = write_gguf(
        tmp_path / "model.gguf",
        model_metadata("llama"),
        {"output.weight": tensor.float().numpy()},
        GGMLQuantizationType.BF16,
    )
    config = {"num_attention_heads": 6, "num_key_value_heads": 2}
    [(_, from_gguf)] = iter_arrays(ModelSource("gguf", path, "x"), config)
    assert np.array_equal(from_gguf, array)


@pytest.mark.parametrize("ggml_type", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0])
def test_blocks_stay_as_the_file_has_them_or_are_dequantized(ggml_type: GGMLQuantizationType, tmp_path: Path) -> None:
    """Queries with their rows in Hugging Face's order, either way."""
    rng = np.random.default_rng(0)
    weights = {
        "blk.0.attn_q.weight": rng.standard_normal((96, 96), np.float32),
        "output_norm.weight": rng.standard_normal(96, np.float32),
    }
    path = write_gguf(tmp_path / "model.gguf", model_metadata("llama"), weights, ggml_type)
    source, config = ModelSource("gguf", path, "x"), {"num_attention_heads": 6, "num_key_value_heads": 2}
    stored, arrays = dict(iter_stored(source, config)), dict(iter_arrays(source, config))
    name = "model.layers.0.self_attn.q_proj.weight"
    blocks = stored[name]
    assert isinstance(blocks, GgufBlocks)
    assert blocks.data.flags.c_contiguous
    assert np.array_equal(blocks.dequantize(), arrays[name])
    assert np.abs(arrays[name][8] - weights["blk.0.attn_q.weight"][1]).max() < 0.5
    assert np.array_equal(stored["model.norm.weight"], arrays["model.norm.weight"])
    assert stored_blocks(path) == {name: StoredBlocks(ggml_type.name.lower(), 96 * 96)}


def test_tensors_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    header = {"b": _entry("F32", [1], 4, 8), "a": _entry("F32", [1], 0, 4), "__metadata__": {"format": "pt"}}
    path = _write(tmp_path / "model.safetensors", header, struct.pack("<2f", 1.0, 2.0))
    arrays = list(iter_arrays(ModelSource("safetensors", tmp_path, "x"), {}))
    assert [(name, array.tolist()) for name, array in arrays] == [("a", [1.0]), ("b", [2.0])]
    assert SafetensorsFile(path).names() == ["a", "b"]


@pytest.mark.parametrize("padding", range(4))
def test_tensors_at_odd_places_are_aligned(padding: int, tmp_path: Path) -> None:
    header = {"a": _entry("F32", [2], 0, 8)}
    file = SafetensorsFile(_write(tmp_path / "x.safetensors", header, struct.pack("<2f", 1.5, -2.0), padding))
    array = file.tensor("a")
    assert array.flags.aligned
    assert array.flags.c_contiguous
    assert array.tolist() == [1.5, -2.0]


def test_a_scalar_and_an_empty_tensor(tmp_path: Path) -> None:
    header = {"scalar": _entry("I64", [], 0, 8), "empty": _entry("F32", [0, 3], 8, 8)}
    file = SafetensorsFile(_write(tmp_path / "x.safetensors", header, struct.pack("<q", -7)))
    assert file.tensor("scalar").shape == ()
    assert int(file.tensor("scalar")) == -7
    assert file.tensor("empty").shape == (0, 3)


def test_memory_that_is_released_is_read_again(tmp_path: Path) -> None:
    stored = torch.arange(40_000, dtype=torch.float32)
    save_file({"a": stored}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    array = file.tensor("a")
    for _ in range(2):
        assert np.array_equal(array, stored.numpy())
        file.release("a")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (_entry("F32", [2], 0, 4), "does not have the size of its shape"),
        (_entry("F32", [-1, -1], 0, 4), "does not have the size of its shape"),
        (_entry("F32", [2], 4, 12), "ends inside the tensor a"),
        (_entry("F32", [2], -8, 0), "ends inside the tensor a"),
        ({"dtype": "F32"}, "data_offsets"),
        (7, "not subscriptable"),
    ],
)
def test_entries_that_make_no_sense_are_refused(entry: Any, why: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "x.safetensors", {"a": entry}, bytes(8))
    with pytest.raises(DamagedFile, match=why):
        SafetensorsFile(path)


def test_a_format_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.safetensors", {"a": _entry("F8_E4M3", [8], 0, 8)}, bytes(8))
    with pytest.raises(UnsupportedQuantization, match="a is stored as F8_E4M3"):
        SafetensorsFile(path)


def test_reading_weights_needs_no_torch() -> None:
    code = (
        "import sys; from services.engine.loading.arrays import iter_arrays;"
        "from services.engine.loading.files import read_model_files;"
        "from services.engine.loading.source import resolve;"
        "source = resolve('default'); next(iter_arrays(source, read_model_files(source).config));"
        "print([name for name in ('torch', 'transformers', 'safetensors') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
