"""What the decoder must know of a model, read from its Hugging Face config.

Whatever would change the tokens and is not computed here is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from services.engine.models.errors import InvalidConfigError, UnsupportedModelError
from services.engine.models.families import FAMILIES, Family
from services.engine.models.fields import integer, number, optional_number
from services.engine.models.layers import LayerConfig, read_layers
from services.engine.models.rope_config import RopeConfig

ARCHITECTURES = tuple(FAMILIES)

Activation = Literal["silu", "gelu_tanh"]

_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-like decoder. Sizes are counts of elements; `num_heads` is a multiple of `num_kv_heads`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    layers: tuple[LayerConfig, ...]
    qkv_bias: bool
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    qk_norm: bool
    fused_projections: bool  # the checkpoint holds queries, keys and values as one tensor, and gate and up as one
    tie_word_embeddings: bool
    activation: Activation
    norm_offset: float  # added to the weights of all norms
    post_norms: bool  # what attention and MLP give is normalised before it is added
    embedding_scale: float
    attention_scale: float  # of the products of queries and keys
    attention_softcap: float | None  # scores s become c * tanh(s / c)
    final_softcap: float | None  # likewise logits

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The different ones that layers have, in order of appearance."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

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
    def from_hf(cls, config: Mapping[str, Any], max_model_len: int | None = None) -> ModelConfig:
        """Reads the dictionary of a Hugging Face config.json.

        `max_model_len` is the longest sequence that will be served, tokens, if that is less than the model allows.
        Raises UnsupportedModelError for what the decoder does not compute, InvalidConfigError for a field that is
        missing or makes no sense.
        """
        architecture = _architecture(config)
        family = FAMILIES[architecture]
        config = {**family.defaults, **config}
        _refuse_unsupported(config, family)
        num_heads = integer(config, "num_attention_heads")
        hidden_size = integer(config, "hidden_size")
        head_dim = integer(config, "head_dim", default=family.defaults.get("head_dim", hidden_size // num_heads))
        num_kv_heads = integer(config, "num_key_value_heads", default=num_heads)
        if num_heads % num_kv_heads:
            raise InvalidConfigError(
                f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}"
            )
        if head_dim % 2:
            raise InvalidConfigError(f"head_dim {head_dim} is odd: rotary embedding needs pairs")
        max_position_embeddings = integer(config, "max_position_embeddings")
        longest = min(max_position_embeddings, max_model_len or max_position_embeddings)
        own_bias = family.attention_bias and bool(config.get("attention_bias"))
        query_scalar = number(config, "query_pre_attn_scalar") if family.query_scale else head_dim
        return cls(
            architecture=architecture,
            vocab_size=integer(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=integer(config, "intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_position_embeddings=max_position_embeddings,
            rms_norm_eps=number(config, "rms_norm_eps", default=1e-6),
            layers=read_layers(config, family, head_dim, longest),
            qkv_bias=family.qkv_bias or own_bias,
            output_bias=own_bias,
            mlp_bias=family.mlp_bias and bool(config.get("mlp_bias")),
            qk_norm=family.qk_norm,
            fused_projections=family.fused_projections,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            activation=_activation(config, family, architecture),
            norm_offset=1.0 if family.gemma else 0.0,
            post_norms=family.post_norms,
            embedding_scale=hidden_size**0.5 if family.gemma else 1.0,
            attention_scale=query_scalar**-0.5,
            attention_softcap=optional_number(config, "attn_logit_softcapping") if family.attention_softcap else None,
            final_softcap=optional_number(config, "final_logit_softcapping") if family.final_softcap else None,
        )


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    if len(names) != 1:
        raise InvalidConfigError(f"architectures must name one architecture, not {names!r}")
    if names[0] not in FAMILIES:
        raise UnsupportedModelError("architecture", names[0], ARCHITECTURES)
    return str(names[0])


def _activation(config: Mapping[str, Any], family: Family, architecture: str) -> Activation:
    name = config.get(family.activation_field) or family.defaults.get(family.activation_field, "silu")
    if name == "gelu" and architecture == "GemmaForCausalLM":  # what the first Gemma's configs call its approximation
        name = "gelu_pytorch_tanh"
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(family.activation_field, name, tuple(_ACTIVATIONS))
    return _ACTIVATIONS[name]


def _refuse_unsupported(config: Mapping[str, Any], family: Family) -> None:
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedModelError("quantization_config", method)
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModelError("use_bidirectional_attention", config["use_bidirectional_attention"])
    caps = {"attn_logit_softcapping": family.attention_softcap, "final_logit_softcapping": family.final_softcap}
    for field, counts in caps.items():
        if not counts and config.get(field) is not None:
            raise UnsupportedModelError(field, config[field])
