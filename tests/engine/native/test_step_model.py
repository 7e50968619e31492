"""Making a native model: its config, its options, its weights in every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import postroad_native
import pytest
import torch

from services.engine.loading.random_weights import random_weights
from services.engine.models.config import ModelConfig
from tests.engine.models.reference import FAMILIES
from tests.engine.native.stepping import model_fields, native_model, plan, prompt, step

LLAMA = FAMILIES["llama"]
CONFIG = ModelConfig.from_hf(LLAMA)
OPTIONS: dict[str, Any] = {"num_pages": 4, "page_size": 16, "threads": 1}


def _unfinished(**options: Any) -> postroad_native.Model:
    return postroad_native.Model(model_fields(CONFIG), **OPTIONS | options)


def test_isas_end_with_the_portable_one_and_auto_takes_the_first() -> None:
    isas = postroad_native.supported_isas()
    assert isas[-1] == "portable"
    assert _unfinished().isa == isas[0]


@pytest.mark.parametrize(
    "options",
    [
        {"isa": "sse9"},
        {"weight_format": "int3"},
        {"num_pages": 0},
        {"num_pages": 2**40},
        {"page_size": 8},
        {"page_size": 24},
        {"page_size": 0},
        {"threads": 0},
        {"threads": 100_000},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        _unfinished(**options)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", 0),
        ("layer_windows", [None, 0, 4]),
        ("layer_windows", [None, -3, None]),
        ("layer_windows", [None]),
        ("layer_ropes", [0, 1, 0]),
        ("layer_ropes", [0, -2, 0]),
        ("layer_ropes", [0]),
        ("attention_scale", 0.0),
        ("attention_softcap", -1.0),
        ("final_softcap", float("nan")),
        ("vocab_size", 2**40),
        ("num_kv_heads", 3),
        ("head_dim", 13),
        ("rope_inv_freqs", [np.ones(7, np.float32)]),
        ("rope_inv_freqs", [np.ones(0, np.float32)]),
        ("rope_inv_freqs", [np.ones((2, 3), np.float32)]),
        ("rope_attention_factors", []),
        ("activation", "relu"),
        ("hidden_size", "many"),
        ("qk_norm", None),
    ],
)
def test_configs_that_make_no_sense(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        postroad_native.Model(model_fields(CONFIG) | {field: value}, **OPTIONS)


def test_a_config_without_a_field() -> None:
    fields = model_fields(CONFIG)
    del fields["num_heads"]
    with pytest.raises(ValueError, match="num_heads"):
        postroad_native.Model(fields, **OPTIONS)


def test_weights_that_do_not_fit() -> None:
    model = _unfinished()
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(ValueError, match=r"unexpected tensor model\.layers\.9"):
        model.set_weight("model.layers.9.mlp.up_proj.weight", np.zeros((80, 48), np.float32))
    with pytest.raises(ValueError, match=r"\[48, 47\].*\[48, 48\]"):
        model.set_weight(name, np.zeros((48, 47), np.float32))
    with pytest.raises(ValueError, match="shape"):
        model.set_weight("model.norm.weight", np.zeros((1, 48), np.float32))
    with pytest.raises(TypeError, match="float32"):
        model.set_weight(name, np.zeros((48, 48), np.float64))
    model.set_weight(name, np.zeros((48, 48), np.float32))
    with pytest.raises(ValueError, match="twice"):
        model.set_weight(name, np.zeros((48, 48), np.float32))


def test_missing_weights_are_named_and_nothing_runs_without_them() -> None:
    model = _unfinished()
    for name, tensor in random_weights(CONFIG, 0):
        if name != "model.layers.1.mlp.down_proj.weight":
            model.set_weight(name, tensor.numpy())
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        model.finish()
    with pytest.raises(RuntimeError, match="finish"):
        step(model, plan([1], [0]))


def _as_bf16_bits(tensor: torch.Tensor) -> npt.NDArray[np.uint16]:
    bits: npt.NDArray[np.uint16] = tensor.bfloat16().view(torch.uint16).numpy()
    return bits


@pytest.mark.parametrize("weight_format", ["bf16", "f32"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_weights_dtype_does_not_matter_where_it_holds_the_same_numbers(dtype: str, weight_format: str) -> None:
    """Weights of 7 significant bits, some of them subnormal in float16."""
    weights = {name: torch.round(tensor * 2**4) / 2**4 for name, tensor in random_weights(CONFIG, 0)}
    weights["model.norm.weight"][::3] = 2.0**-20
    converters = {"float32": torch.Tensor.numpy, "float16": lambda t: t.half().numpy(), "bfloat16": _as_bf16_bits}
    logits = []
    for convert in (converters["float32"], converters[dtype]):
        model = _unfinished(weight_format=weight_format)
        for name, tensor in weights.items():
            model.set_weight(name, convert(tensor))
        model.finish()
        logits.append(step(model, plan(prompt(1, 20), [0, 1])))
    np.testing.assert_array_equal(logits[1], logits[0])


def test_memory_of_weights_is_that_of_their_numbers_and_little_more() -> None:
    numbers = sum(tensor.numel() for _, tensor in random_weights(CONFIG, 0))
    padding = 1.6  # small matrices are padded to panels of 32 features
    assert 2 * numbers <= _unfinished().weight_bytes <= 2 * numbers * padding
    assert 4 * numbers <= _unfinished(weight_format="f32").weight_bytes <= 4 * numbers * padding


def test_models_come_and_go_with_their_threads() -> None:
    for _ in range(20):
        model = native_model(LLAMA, threads=4, num_pages=4)
        step(model, plan(prompt(2, 20), [0, 1]))
