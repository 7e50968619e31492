"""The header of a GGUF file, compared with what the gguf package's own reader says."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from services.engine.loading.errors import DamagedFile, ModelNotFound, UnsupportedQuantization
from services.engine.loading.gguf_file import read_gguf
from tests.engine.loading.gguf_files import write_gguf
from tests.support.models import default_gguf


def test_default_model_reads_as_by_the_gguf_package() -> None:
    ours = read_gguf(default_gguf())
    theirs = gguf.GGUFReader(default_gguf())
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(tensor.shape.tolist()[::-1])
        assert info.ggml_type == tensor.tensor_type
        assert (info.offset, info.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert np.array_equal(ours.data(info), tensor.data.view(np.uint8))


def test_values_of_every_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "all.gguf", "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.25)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "𝔘 ≠ \n 邮")
    writer.add_array("texts", ["", "a", "邮"])
    writer.add_array("numbers", [3, -1, 7])
    writer.add_array("floats", [0.5, -0.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    read = dict(read_gguf(tmp_path / "all.gguf").metadata)
    assert read == {
        "general.architecture": "llama",
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.25,
        "f64": 0.1,
        "yes": True,
        "text": "𝔘 ≠ \n 邮",
        "texts": ["", "a", "邮"],
        "numbers": [3, -1, 7],
        "floats": [0.5, -0.5],
    }


def test_alignment_of_its_own(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "aligned.gguf", "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.arange(3, dtype=np.float32))
    writer.add_tensor("b", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "aligned.gguf")
    assert file.data(file.tensors["b"]).view(np.float32).tolist() == [0, 1, 2, 3, 4]
    assert file.tensors["b"].offset % 256 == 0


def _small(tmp_path: Path) -> bytes:
    tensors = {"token_embd.weight": np.ones((4, 32), np.float32)}
    return write_gguf(tmp_path / "small.gguf", {"general.architecture": "llama"}, tensors).read_bytes()


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = _small(tmp_path)
    cut = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(DamagedFile, match=r"cut\.gguf"):
            read_gguf(cut)
    cut.write_bytes(whole)
    assert read_gguf(cut).tensors["token_embd.weight"].shape == (4, 32)


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<!DOCTYPE html>" * 10)
    with pytest.raises(DamagedFile, match="is not a GGUF file"):
        read_gguf(tmp_path / "page.gguf")


def test_unknown_version(tmp_path: Path) -> None:
    whole = bytearray(_small(tmp_path))
    whole[4] = 9
    (tmp_path / "new.gguf").write_bytes(whole)
    with pytest.raises(DamagedFile, match="GGUF version 9"):
        read_gguf(tmp_path / "new.gguf")


def test_unknown_tensor_type(tmp_path: Path) -> None:
    whole = _small(tmp_path)
    entry = whole.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8
    assert whole[entry : entry + 4] == GGMLQuantizationType.F32.to_bytes(4, "little")
    (tmp_path / "new.gguf").write_bytes(whole[:entry] + (999).to_bytes(4, "little") + whole[entry + 4 :])
    with pytest.raises(UnsupportedQuantization, match=r"token_embd\.weight has the unknown GGML type 999"):
        read_gguf(tmp_path / "new.gguf")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no such file: .*none\.gguf"):
        read_gguf(tmp_path / "none.gguf")
