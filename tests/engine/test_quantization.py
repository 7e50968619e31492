"""Which format each matrix gets."""

from __future__ import annotations

import pytest

from services.engine import hardware, resources
from services.engine.loading.gguf_weights import StoredBlocks
from services.engine.models.config import ModelConfig
from services.engine.quantization import WeightFormats
from services.engine.settings import EngineSettings, Quantization
from tests.engine.models.reference import FAMILIES

TIED = ModelConfig.from_hf(FAMILIES["llama"] | {"tie_word_embeddings": True})
UNTIED = ModelConfig.from_hf(FAMILIES["llama"] | {"tie_word_embeddings": False})
UP, DOWN, TABLE, HEAD = (
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.embed_tokens.weight",
    "lm_head.weight",
)


def _stored(**types: str) -> dict[str, StoredBlocks]:
    names = {"up": UP, "down": DOWN, "table": TABLE}
    return {names[name]: StoredBlocks(type_name, 100) for name, type_name in types.items()}


@pytest.mark.parametrize(
    ("quantization", "otherwise", "by_tensor"),
    [
        ("none", "none", {}),
        ("auto", "none", {UP: "int4_group32", DOWN: "int4_group32", TABLE: "int8_group32"}),
        ("int8", "int8", {TABLE: "int8_group32"}),
        ("int4", "int4_group32", {TABLE: "int8_group32"}),
    ],
)
def test_blocks_of_the_width_asked_for_are_taken_as_they_are(
    quantization: Quantization, otherwise: str, by_tensor: dict[str, str]
) -> None:
    formats = WeightFormats.choose(quantization, "bf16", TIED, _stored(up="q4_0", down="q4_1", table="q8_0"))
    assert formats == WeightFormats("bf16", otherwise, by_tensor)


@pytest.mark.parametrize(("config", "head"), [(TIED, TABLE), (UNTIED, HEAD)])
def test_the_head_keeps_8_bits(config: ModelConfig, head: str) -> None:
    assert WeightFormats.choose("int4", "f32", config, {}) == WeightFormats("f32", "int4", {head: "int8"})
    from_blocks = WeightFormats.choose("int4", "bf16", TIED, _stored(table="q4_0"))
    assert from_blocks == WeightFormats("bf16", "int4_group32", {TABLE: "int8"})


def test_without_blocks_auto_quantizes_nothing() -> None:
    assert WeightFormats.choose("auto", "bf16", TIED, {}) == WeightFormats.plain("bf16")


def test_memory_is_that_of_the_formats() -> None:
    numbers = TIED.num_weights
    assert WeightFormats.plain("bf16").num_bytes(TIED, {}) == 2 * numbers
    assert WeightFormats.plain("f32").num_bytes(TIED, {}) == 4 * numbers
    assert WeightFormats.choose("int8", "bf16", TIED, {}).num_bytes(TIED, {}) == numbers
    table = TIED.vocab_size * TIED.hidden_size
    int4 = WeightFormats.choose("int4", "bf16", TIED, {}).num_bytes(TIED, {})
    assert int4 == pytest.approx(0.5625 * (numbers - table) + table, abs=1)
    stored = _stored(up="q4_1")
    assert WeightFormats.choose("auto", "bf16", TIED, stored).num_bytes(TIED, stored) == pytest.approx(
        2 * (numbers - 100) + 62.5, abs=1
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "auto"),
        (["--dtype", "bfloat16"], "auto"),
        (["--dtype", "float32"], "none"),
        (["--dtype", "float32", "--quantization", "int8"], "int8"),
        (["--quantization", "none"], "none"),
    ],
)
def test_who_asks_for_float32_gets_exact_weights(
    flags: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "has_matrix_unit", lambda: False)
    assert resources.quantization(EngineSettings.parse(flags)) == expected


def test_with_a_matrix_unit_nothing_is_quantized_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_matrix_unit", lambda: True)
    assert resources.quantization(EngineSettings.parse([])) == "none"
    assert resources.quantization(EngineSettings.parse(["--quantization", "int4"])) == "int4"
