"""Models for tests: the real small one, and tiny random ones of each family."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from services.engine.loading.files import read_model_files
from services.engine.loading.source import resolve

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")

_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MistralForCausalLM": "mistral",
}
_TIED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")


def default_gguf() -> Path:
    """The file of the default model, SmolLM2-135M-Instruct."""
    return resolve("default").path


def tiny_model_folder(tmp_path: Path, architecture: str, seed: int = 0) -> Path:
    """Writes a complete model folder in Hugging Face form and returns it.

    Three layers of 6 heads with 2 KV heads of 16 elements each, float32, random weights that depend on `seed` alone
    (biases and norms too, so that leaving one out shows), and the default model's tokenizer. Qwen ones are tied.
    """
    folder = tmp_path / f"tiny-{_MODEL_TYPES[architecture]}-{seed}"
    folder.mkdir(parents=True)
    files = read_model_files(resolve("default"))
    for name, content in files.tokenizer_files.items():
        (folder / name).write_bytes(content)
    model = AutoModelForCausalLM.from_config(_tiny_config(architecture, files.vocab_size))
    _randomise(model, seed)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(folder)
    return folder


def _tiny_config(architecture: str, vocab_size: int) -> AutoConfig:
    return AutoConfig.for_model(
        _MODEL_TYPES[architecture],
        architectures=[architecture],
        vocab_size=vocab_size,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=architecture in _TIED,
        sliding_window=None,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        dtype="float32",
    )


@torch.no_grad()
def _randomise(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            parameter.copy_(1.0 + 0.1 * noise)
        elif parameter.dim() == 2:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        else:
            parameter.copy_(0.1 * noise)
