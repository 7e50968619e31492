"""Weights under Hugging Face names, from safetensors and from GGUF, compared with transformers' own."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from services.engine.loading.errors import (
    DamagedFile,
    FileMissing,
    UnsupportedArchitecture,
    UnsupportedQuantization,
    WeightsMissing,
)
from services.engine.loading.files import read_model_files
from services.engine.loading.gguf_weights import hugging_face_name
from services.engine.loading.source import ModelSource, resolve
from services.engine.loading.weights import iter_lazily, iter_weights
from tests.engine.loading.gguf_files import gguf_tensors, model_metadata, write_gguf
from tests.support.models import ARCHITECTURES, default_gguf, tiny_model_folder

GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models"), request.param, seed=1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("llama"), "LlamaForCausalLM", seed=2)


def _weights(source: ModelSource) -> dict[str, torch.Tensor]:
    """All weights; a name that comes twice fails."""
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in iter_weights(source, read_model_files(source).config):
        assert name not in weights
        weights[name] = tensor
    return weights


def _assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name], tensor), name


class TestSafetensors:
    def test_every_parameter_of_the_model(self, folder: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        _assert_same(_weights(resolve(str(folder))), dict(model.named_parameters()))

    def test_shards(self, llama: Path, tmp_path: Path) -> None:
        sharded = tmp_path / "sharded"
        AutoModelForCausalLM.from_pretrained(llama).save_pretrained(sharded, max_shard_size="10MB")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (sharded / name).write_bytes((llama / name).read_bytes())
        assert len(list(sharded.glob("*.safetensors"))) > 1
        _assert_same(_weights(resolve(str(sharded))), load_file(llama / "model.safetensors"))

    def test_dtypes_are_the_file_s(self, tmp_path: Path) -> None:
        stored = {"a": torch.randn(3, 4).bfloat16(), "b": torch.randn(5).half(), "c": torch.randn(2, 2)}
        save_file(stored, tmp_path / "model.safetensors")
        _assert_same(dict(iter_weights(ModelSource("safetensors", tmp_path, "x"), {})), stored)

    def test_weights_outlive_the_iteration(self, llama: Path) -> None:
        stored = load_file(llama / "model.safetensors")
        kept = list(iter_weights(resolve(str(llama)), {}))
        assert all(torch.equal(tensor, stored[name]) for name, tensor in kept)

    def test_one_file_of_another_name(self, tmp_path: Path) -> None:
        save_file({"a": torch.ones(2)}, tmp_path / "weights.safetensors")
        assert [name for name, _ in iter_weights(ModelSource("safetensors", tmp_path, "x"), {})] == ["a"]

    def test_a_second_copy_beside_the_index_is_left_alone(self, tmp_path: Path) -> None:
        save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00001.safetensors")
        save_file({"other": torch.ones(2)}, tmp_path / "consolidated.safetensors")
        index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert [name for name, _ in iter_weights(ModelSource("safetensors", tmp_path, "x"), {})] == ["a"]

    def test_several_files_without_an_index(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
        with pytest.raises(WeightsMissing, match=r"has 2 \.safetensors files, no model\.safetensors\.index\.json"):
            list(iter_weights(ModelSource("safetensors", tmp_path, "x"), {}))

    def test_missing_shard(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
        with pytest.raises(FileMissing, match=r"has no gone\.safetensors"):
            list(iter_weights(ModelSource("safetensors", tmp_path, "x"), {}))

    def test_shard_without_its_tensor(self, tmp_path: Path) -> None:
        save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"b": "one.safetensors"}}))
        with pytest.raises(DamagedFile, match=r"one\.safetensors"):
            list(iter_weights(ModelSource("safetensors", tmp_path, "x"), {}))

    @pytest.mark.parametrize("length", [0, 7, 100, -1])
    def test_truncated_file(self, length: int, llama: Path, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes()[:length])
        with pytest.raises(DamagedFile, match=r"model\.safetensors is not a readable"):
            list(iter_weights(ModelSource("safetensors", tmp_path, "x"), {}))

    @pytest.mark.parametrize("content", ["{", "{}", "[]"])
    def test_damaged_index(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(content)
        with pytest.raises(DamagedFile, match="index of safetensors"):
            list(iter_weights(ModelSource("safetensors", tmp_path, "x"), {}))


class TestGguf:
    @pytest.mark.parametrize("architecture", GGUF_ARCHITECTURES)
    @pytest.mark.parametrize(
        ("stored", "dtype"),
        [
            (GGMLQuantizationType.F32, torch.float32),
            (GGMLQuantizationType.F16, torch.float16),
            (GGMLQuantizationType.BF16, torch.bfloat16),
            (GGMLQuantizationType.Q8_0, torch.float32),
        ],
    )
    def test_gives_what_was_converted(
        self, architecture: str, stored: GGMLQuantizationType, dtype: torch.dtype, tmp_path: Path
    ) -> None:
        folder = tiny_model_folder(tmp_path, GGUF_ARCHITECTURES[architecture], seed=3)
        original = load_file(folder / "model.safetensors")
        tensors = gguf_tensors(architecture, {name: tensor.numpy() for name, tensor in original.items()})
        path = write_gguf(tmp_path / "model.gguf", model_metadata(architecture), tensors, stored)
        ours = dict(iter_weights(ModelSource("gguf", path, "x"), json.loads((folder / "config.json").read_text())))
        expected = {}
        for name, tensor in original.items():
            if tensor.dim() == 1:
                expected[name] = tensor
            elif stored == GGMLQuantizationType.Q8_0:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), stored), stored)
                expected[name] = torch.from_numpy(rounded)
            else:
                expected[name] = tensor.to(dtype)
        _assert_same(ours, expected)

    @pytest.mark.parametrize(
        "stored", [GGMLQuantizationType.BF16, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0]
    )
    def test_a_part_is_that_part_of_the_whole(self, stored: GGMLQuantizationType, tmp_path: Path) -> None:
        folder = tiny_model_folder(tmp_path, GGUF_ARCHITECTURES["llama"], seed=3)
        original = load_file(folder / "model.safetensors")
        tensors = gguf_tensors("llama", {name: tensor.numpy() for name, tensor in original.items()})
        source = ModelSource("gguf", write_gguf(tmp_path / "m.gguf", model_metadata("llama"), tensors, stored), "x")
        config = json.loads((folder / "config.json").read_text())
        whole = dict(iter_weights(source, config))
        for name, lazy in iter_lazily(source, config):
            assert lazy.shape == whole[name].shape
            # The second and third of six heads, of two KV heads the second; columns within a block and across blocks.
            for rows, columns in ((slice(16, 32), slice(5, 7)), (slice(16, 32), slice(31, 70))):
                part = (rows, columns)[: len(lazy.shape)]
                assert torch.equal(lazy[part], whole[name][part]), name

    @pytest.mark.slow
    def test_default_model_equals_transformers(self) -> None:
        """Tensor by tensor, bit by bit, in float32. Its tensors also fit transformers' model of our configuration."""
        config = AutoConfig.for_model(**read_model_files(resolve("default")).config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        theirs = load_gguf_checkpoint(default_gguf(), return_tensors=True, model_to_load=model)["tensors"]
        ours = _weights(resolve("default"))
        _assert_same(ours, theirs)
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        assert {name: tensor.shape for name, tensor in ours.items()} == shapes

    def test_rope_frequencies_are_no_weight(self, tmp_path: Path) -> None:
        tensors = {"rope_freqs.weight": np.ones(8, np.float32), "output_norm.weight": np.ones(96, np.float32)}
        path = write_gguf(tmp_path / "model.gguf", model_metadata("llama"), tensors)
        config = {"num_attention_heads": 6, "num_key_value_heads": 2}
        assert [name for name, _ in iter_weights(ModelSource("gguf", path, "x"), config)] == ["model.norm.weight"]

    @pytest.mark.parametrize(
        ("name", "ours"),
        [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
            ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
            ("blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
            ("blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"),
        ],
    )
    def test_names(self, name: str, ours: str) -> None:
        assert hugging_face_name(name, "llama") == ours

    @pytest.mark.parametrize(
        "name", ["blk.0.ffn_gate_exps.weight", "blk.0.ssm_a", "attn_q.weight", "blk.0.output.weight"]
    )
    def test_unknown_tensor_is_named(self, name: str) -> None:
        with pytest.raises(UnsupportedArchitecture, match=name):
            hugging_face_name(name, "llama")

    def test_unreadable_quantization_is_named(self, tmp_path: Path) -> None:
        path = write_gguf(
            tmp_path / "model.gguf", model_metadata("llama"), {"output.weight": np.ones((2, 32), np.float32)}
        )
        whole = path.read_bytes()
        entry = whole.index(b"output.weight") + len(b"output.weight") + 4 + 2 * 8
        q8_1 = GGMLQuantizationType.Q8_1.to_bytes(4, "little")
        path.write_bytes(whole[:entry] + q8_1 + whole[entry + 4 :])
        config = {"num_attention_heads": 6, "num_key_value_heads": 2}
        with pytest.raises(UnsupportedQuantization, match=r"output\.weight is stored as Q8_1"):
            list(iter_weights(ModelSource("gguf", path, "x"), config))
