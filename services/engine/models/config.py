"""What the decoder must know of a model, read from its Hugging Face config.

Whatever would change the tokens and is not computed here is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.engine.models.errors import InvalidConfigError, UnsupportedModelError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3")

_QWEN3_HEAD_DIM = 128  # what transformers takes where a Qwen3 config names none


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: positions are divided by `factor` (arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: its base, and how frequencies are scaled, if at all."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | None = None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> RopeConfig:
        """Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

        Raises UnsupportedModelError for a rope type or a partial rotation, InvalidConfigError for a missing parameter.
        """
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        merged = {**config, **rope}
        if merged.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise UnsupportedModelError("partial_rotary_factor", merged["partial_rotary_factor"])
        theta = _number(merged, "rope_theta", default=10000.0)
        match rope_type := rope.get("rope_type", rope.get("type", "default")):
            case "default":
                return cls(theta)
            case "linear":
                return cls(theta, LinearScaling(_number(rope, "factor")))
            case "llama3":
                scaling = Llama3Scaling(
                    factor=_number(rope, "factor"),
                    low_freq_factor=_number(rope, "low_freq_factor"),
                    high_freq_factor=_number(rope, "high_freq_factor"),
                    original_max_position_embeddings=_integer(rope, "original_max_position_embeddings"),
                )
                return cls(theta, scaling)
        raise UnsupportedModelError("rope type", rope_type, ROPE_TYPES)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-like decoder. Sizes are counts of elements; `num_heads` is a multiple of `num_kv_heads`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_weights(self) -> int:
        """Elements of all matrices; the vectors beside them do not count in comparison."""
        attention = 2 * self.hidden_size * (self.q_size + self.kv_size)
        mlp = 3 * self.hidden_size * self.intermediate_size
        tables = 1 if self.tie_word_embeddings else 2
        return self.num_layers * (attention + mlp) + tables * self.vocab_size * self.hidden_size

    def determines(self, tensor_name: str) -> bool:
        """Whether a checkpoint's tensor says nothing that the config does not, so that loading leaves it out."""
        tied_head = self.tie_word_embeddings and tensor_name == "lm_head.weight"
        return tied_head or tensor_name.endswith(".rotary_emb.inv_freq")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Reads the dictionary of a Hugging Face config.json.

        Raises UnsupportedModelError for what the decoder does not compute, InvalidConfigError for a field that is
        missing or makes no sense.
        """
        architecture = _architecture(config)
        _refuse_unsupported(config, architecture)
        num_heads = _integer(config, "num_attention_heads")
        hidden_size = _integer(config, "hidden_size")
        own_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM") and bool(config.get("attention_bias"))
        default_head_dim = _QWEN3_HEAD_DIM if architecture == "Qwen3ForCausalLM" else hidden_size // num_heads
        parsed = cls(
            architecture=architecture,
            vocab_size=_integer(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_integer(config, "intermediate_size"),
            num_layers=_integer(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=_integer(config, "num_key_value_heads", default=num_heads),
            head_dim=_integer(config, "head_dim", default=default_head_dim),
            max_position_embeddings=_integer(config, "max_position_embeddings"),
            rms_norm_eps=_number(config, "rms_norm_eps", default=1e-6),
            rope=RopeConfig.from_hf(config),
            qkv_bias=architecture == "Qwen2ForCausalLM" or own_bias,
            output_bias=own_bias,
            mlp_bias=architecture == "LlamaForCausalLM" and bool(config.get("mlp_bias")),
            qk_norm=architecture == "Qwen3ForCausalLM",
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        )
        if parsed.num_heads % parsed.num_kv_heads:
            raise InvalidConfigError(
                f"num_attention_heads {parsed.num_heads} is no multiple of num_key_value_heads {parsed.num_kv_heads}"
            )
        if parsed.head_dim % 2:
            raise InvalidConfigError(f"head_dim {parsed.head_dim} is odd: rotary embedding needs pairs")
        return parsed


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    if len(names) != 1:
        raise InvalidConfigError(f"architectures must name one architecture, not {names!r}")
    if names[0] not in ARCHITECTURES:
        raise UnsupportedModelError("architecture", names[0], ARCHITECTURES)
    return str(names[0])


def _refuse_unsupported(config: Mapping[str, Any], architecture: str) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError("hidden_act", activation, ("silu",))
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedModelError("quantization_config", method)
    for layer_type in config.get("layer_types") or ():
        if layer_type != "full_attention":
            raise UnsupportedModelError("layer_types", layer_type, ("full_attention",))
    if _slides(config, architecture):
        raise UnsupportedModelError("sliding_window", config["sliding_window"], ("full attention",))


def _slides(config: Mapping[str, Any], architecture: str) -> bool:
    """Whether a sliding window cuts attention for any position of any layer."""
    window = config.get("sliding_window")
    if window is None or window >= _integer(config, "max_position_embeddings"):
        return False
    if architecture == "MistralForCausalLM":
        return True
    if architecture == "LlamaForCausalLM":  # has no window, whatever the config says
        return False
    full_layers = config.get("max_window_layers", 0)  # Qwen: the first so many layers see everything
    return bool(config.get("use_sliding_window")) and full_layers < _integer(config, "num_hidden_layers")


def _integer(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive integer. A field that is absent or null takes the default, if there is one."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidConfigError(f"{key} must be a positive integer, not {value!r}")
    return value


def _number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A positive number. A field that is absent or null takes the default, if there is one."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise InvalidConfigError(f"{key} must be a positive number, not {value!r}")
    return float(value)
