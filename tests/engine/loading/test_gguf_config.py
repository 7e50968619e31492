"""GGUF metadata → configuration, as transformers' own configuration classes and ModelConfig read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from services.engine.loading.errors import DamagedFile, UnsupportedArchitecture
from services.engine.loading.gguf_config import config_from_gguf, eos_token_ids
from services.engine.loading.gguf_file import read_gguf
from services.engine.models.config import ModelConfig
from tests.engine.loading.gguf_files import Arrays, model_metadata, write_gguf
from tests.support.models import default_gguf

EMBEDDING = {"token_embd.weight": np.zeros((64, 96), np.float32)}


def _config(tmp_path: Path, metadata: dict[str, Any], **more: Any) -> dict[str, Any]:
    tensors: Arrays = EMBEDDING | more
    return config_from_gguf(read_gguf(write_gguf(tmp_path / "model.gguf", metadata, tensors)))


def test_default_model() -> None:
    config = config_from_gguf(read_gguf(default_gguf()))
    # As published in the model's own config.json.
    published = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": 1,
        "pad_token_id": 2,
    }
    assert {key: config[key] for key in published} == published
    assert config["eos_token_id"] == [2]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_every_reader_gets_the_same(architecture: str, tmp_path: Path) -> None:
    config = _config(tmp_path, model_metadata(architecture, **{"rope.freq_base": 1_000_000.0}))
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs, ours = AutoConfig.from_pretrained(tmp_path), ModelConfig.from_hf(config)
    assert theirs.model_type == architecture
    assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": 1_000_000.0}
    assert theirs.architectures == [ours.architecture]
    assert (ours.vocab_size, ours.hidden_size, ours.num_layers, ours.num_heads, ours.num_kv_heads) == (64, 96, 3, 6, 2)
    assert (theirs.vocab_size, theirs.hidden_size, theirs.num_hidden_layers) == (64, 96, 3)
    assert (theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim) == (6, 2, 16)
    assert theirs.rms_norm_eps == ours.rms_norm_eps == 1e-5
    assert theirs.tie_word_embeddings is ours.tie_word_embeddings is True
    assert ours.head_dim == 16
    assert [rope.theta for rope in ours.ropes] == [1_000_000.0]
    assert ours.qk_norm == (architecture == "qwen3")
    assert ours.qkv_bias == (architecture == "qwen2")


def test_untied_where_there_is_an_output_projection(tmp_path: Path) -> None:
    config = _config(tmp_path, model_metadata("llama"), **{"output.weight": np.zeros((64, 96), np.float32)})
    assert config["tie_word_embeddings"] is False


def test_vocab_size_is_the_embedding_s_rows(tmp_path: Path) -> None:
    metadata = model_metadata("llama", vocab_size=50) | {"tokenizer.ggml.tokens": ["a", "b"]}
    assert _config(tmp_path, metadata)["vocab_size"] == 64


def test_what_files_may_leave_out(tmp_path: Path) -> None:
    left_out = ["attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base"]
    config = _config(tmp_path, model_metadata("llama", **dict.fromkeys(left_out)))
    assert config["num_key_value_heads"] == 6
    assert config["head_dim"] == 16
    assert config["rope_theta"] == 10_000.0


def test_fieldbug_10_end_of_turn_and_of_message_end_too(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 6}
    file = read_gguf(write_gguf(tmp_path / "model.gguf", model_metadata("llama") | ids, EMBEDDING))
    assert eos_token_ids(file) == {5, 6, 7}
    assert config_from_gguf(file)["eos_token_id"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope.scaling.type": "none"}, {"rope_type": "default"}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 1024},
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024},
        ),
    ],
)
def test_rope_scaling(scaling: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    config = _config(tmp_path, model_metadata("qwen2", **scaling))
    assert config["rope_parameters"] == {"rope_theta": 10_000.0, **expected}


def _llama3_divisors(factor: float, original: int = 8192) -> Any:
    """What the converter stores: the unscaled frequencies over those of transformers' llama3 rope."""
    rope = {
        "rope_theta": 500_000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    config = LlamaConfig(
        hidden_size=384, num_attention_heads=6, head_dim=64, rope_parameters={"rope_type": "llama3", **rope}
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 500_000.0 ** (torch.arange(0, 64, 2) / 64)
    return (plain / scaled).numpy()


LLAMA3 = {"rope.freq_base": 500_000.0, "attention.key_length": 64, "attention.value_length": 64}


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_is_recovered_from_its_frequencies(factor: float, tmp_path: Path) -> None:
    config = _config(tmp_path, model_metadata("llama", **LLAMA3), **{"rope_freqs.weight": _llama3_divisors(factor)})
    rope = config["rope_parameters"]
    assert rope.pop("factor") == pytest.approx(factor, rel=1e-5)
    assert rope == {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_other_frequencies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match="rope_freqs"):
        _config(tmp_path, model_metadata("llama", **LLAMA3), **{"rope_freqs.weight": _llama3_divisors(8.0, 4096)})


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (model_metadata("olmo2"), "architecture 'olmo2'"),
        (model_metadata("llama", expert_count=8), "mixture of experts"),
        (model_metadata("llama") | {"split.count": 3}, "one of 3 parts"),
        (model_metadata("llama", **{"rope.dimension_count": 8}), "only a part of each head"),
        (model_metadata("llama", **{"attention.value_length": 8}), "values of another length"),
        (model_metadata("llama", **{"attention.head_count_kv": [2, 1, 2]}), "head_count_kv for each layer"),
        (model_metadata("llama", **{"rope.scaling.type": "longrope"}), "'longrope'"),
    ],
)
def test_unsupported(metadata: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match=words):
        _config(tmp_path, metadata)


def test_lost_keys(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match=r"lacks llama\.block_count"):
        _config(tmp_path, model_metadata("llama", block_count=None))


def test_lost_embedding(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match=r"token_embd\.weight"):
        config_from_gguf(read_gguf(write_gguf(tmp_path / "model.gguf", model_metadata("llama"))))
