"""Loading: tensors with Hugging Face names → the decoder's own, fused ones.

Every tensor of the checkpoint has its place before it is read: a view of the fused tensor that it is a part of. So
loading is one copy per tensor, and the same table says what is missing, surplus or of the wrong shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from services.engine.models.config import ModelConfig
from services.engine.models.decoder import MLP, Attention, Decoder, DecoderLayer, Embedding, Linear, Projection
from services.engine.models.errors import MissingWeightError, UnexpectedWeightError, WeightShapeError
from services.engine.models.frequencies import inverse_frequencies
from services.engine.models.norm import RMSNorm
from services.engine.models.parallel import Collectives, RowParallelLinear, VocabParallelEmbedding, VocabParallelHead
from services.engine.models.projections import gate_up_projections, qkv_projections, split_sizes
from services.engine.models.rope import Rope
from services.engine.models.sharding import Shard


class StoredTensor(Protocol):
    """A tensor of a checkpoint that is read as far as it is asked for; torch's own, for one, and views of files."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, part: tuple[slice, ...], /) -> Tensor: ...


def load_model(
    config: ModelConfig, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, device: torch.device | str
) -> Decoder:
    """Builds a decoder of `dtype` on `device` from (Hugging Face name, tensor) pairs in any order and float dtype.

    The pairs are taken one by one, so an iterator that reads lazily keeps one tensor in memory beside the decoder.
    Raises MissingWeightError, UnexpectedWeightError or WeightShapeError, each with the tensor's name.
    """
    allocator = _Allocator(dtype, torch.device(device))
    decoder = _allocate(config, allocator)
    places = allocator.places
    for name, tensor in weights:
        if config.determines(name):
            continue
        place = places.pop(name, None)
        if place is None:
            raise UnexpectedWeightError(name)
        if place.shape != tensor.shape:
            raise WeightShapeError(name, place.shape, tensor.shape)
        with torch.no_grad():
            place.copy_(tensor)
    if places:
        raise MissingWeightError(list(places))
    return decoder


def load_shard(
    shard: Shard,
    weights: Iterable[tuple[str, StoredTensor]],
    dtype: torch.dtype,
    device: torch.device | str,
    collectives: Collectives,
) -> Decoder:
    """As `load_model`, for one rank: of each tensor only the rank's part is read."""
    allocator = _Allocator(dtype, torch.device(device), shard, collectives)
    decoder = _allocate(shard.local_config, allocator)
    places, shapes = allocator.places, dict(weight_shapes(shard.config))
    for name, stored in weights:
        if shard.config.determines(name):
            continue
        expected = shapes.pop(name, None)
        if expected is None:
            raise UnexpectedWeightError(name)
        if expected != tuple(stored.shape):
            raise WeightShapeError(name, expected, stored.shape)
        for part_name, part in _parts(shard, name):
            with torch.no_grad():
                places[part_name].copy_(stored[part])
    if shapes:
        raise MissingWeightError(list(shapes))
    return decoder


def _parts(shard: Shard, name: str) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """The rank's part of a tensor of the checkpoint; of one that is fused, of each tensor in it."""
    sizes = split_sizes(shard.config, name)
    for (part_name, size), end in zip(sizes.items(), accumulate(sizes.values()), strict=True):
        rows, *columns = shard.part_of(part_name)
        if len(sizes) > 1:
            rows = slice(rows.start + end - size, rows.stop + end - size)
        yield part_name, (rows, *columns)


def weight_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Shape by name of every tensor that `load_model` calls for."""
    allocator = _Allocator(torch.float32, torch.device("meta"))
    _allocate(config, allocator)
    return {name: tuple(place.shape) for name, place in allocator.places.items()}


class _Allocator:
    """Makes the decoder's tensors, and notes in `places` which view of them each tensor of the checkpoint fills."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard | None = None,
        collectives: Collectives | None = None,
    ) -> None:
        """With `shard` and `collectives` for one rank of several, without for a whole model."""
        self.places: dict[str, Tensor] = {}
        self.device = device
        self._dtype = dtype
        self._ranks = (shard, collectives) if shard is not None and collectives is not None else None

    def tensor(self, name: str, *shape: int) -> Tensor:
        tensor = self._empty(shape)
        self.places[name] = tensor
        return tensor

    def norm(self, config: ModelConfig, name: str, size: int) -> RMSNorm:
        return RMSNorm(self.tensor(f"{name}.weight", size), config.rms_norm_eps, config.norm_offset)

    def linear(self, parts: Mapping[str, int], in_size: int, *, bias: bool) -> Linear:
        """One product that stands for several: `parts` holds name and output size of each, in order."""
        sizes = list(parts.values())
        weight = self._empty((sum(sizes), in_size))
        self.places.update(zip((f"{name}.weight" for name in parts), torch.split(weight, sizes), strict=True))
        if not bias:
            return Linear(weight, None)
        vector = self._empty((sum(sizes),))
        self.places.update(zip((f"{name}.bias" for name in parts), torch.split(vector, sizes), strict=True))
        return Linear(weight, vector)

    def output_linear(self, name: str, in_size: int, out_size: int, *, bias: bool) -> Projection:
        """A product that ends a block: where ranks divide its inputs, they add up what they have."""
        linear = self.linear({name: out_size}, in_size, bias=bias)
        if self._ranks is None:
            return linear
        return RowParallelLinear(Linear(linear.weight, None), linear.bias, self._ranks[1])

    def embedding(self, config: ModelConfig) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        weight = self.tensor("model.embed_tokens.weight", self._vocab_size(config), config.hidden_size)
        return weight, Embedding(weight) if self._ranks is None else VocabParallelEmbedding(weight, *self._ranks)

    def head(self, config: ModelConfig, embeddings: Tensor) -> Projection:
        if config.tie_word_embeddings:
            linear = Linear(embeddings, None)
        else:
            linear = self.linear({"lm_head": self._vocab_size(config)}, config.hidden_size, bias=False)
        return linear if self._ranks is None else VocabParallelHead(linear.weight, *self._ranks)

    def _vocab_size(self, config: ModelConfig) -> int:
        return config.vocab_size if self._ranks is None else len(self._ranks[0].vocab)

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self.device)


def _allocate(config: ModelConfig, new: _Allocator) -> Decoder:
    embeddings, embed = new.embedding(config)
    layers = tuple(_allocate_layer(config, new, index) for index in range(config.num_layers))
    norm = new.norm(config, "model.norm", config.hidden_size)
    lm_head = new.head(config, embeddings)
    ropes = tuple(
        Rope(torch.from_numpy(inverse_frequencies(rope)).to(new.device), rope.attention_factor) for rope in config.ropes
    )
    return Decoder(config, embeddings, embed, layers, norm, lm_head, ropes)


def _allocate_layer(config: ModelConfig, new: _Allocator, index: int) -> DecoderLayer:
    name = f"model.layers.{index}"
    rope = config.layers[index].rope
    post_norms = config.post_norms
    # With norms behind attention and MLP, Llama's name of the norm before the MLP is that of the one behind attention.
    mlp_norm = "pre_feedforward_layernorm" if post_norms else "post_attention_layernorm"

    def norm(module: str) -> RMSNorm:
        return new.norm(config, f"{name}.{module}", config.hidden_size)

    return DecoderLayer(
        rope=None if rope is None else config.ropes.index(rope),
        attention_norm=norm("input_layernorm"),
        attention=_allocate_attention(config, new, f"{name}.self_attn"),
        attention_post_norm=norm("post_attention_layernorm") if post_norms else None,
        mlp_norm=norm(mlp_norm),
        mlp=_allocate_mlp(config, new, f"{name}.mlp"),
        mlp_post_norm=norm("post_feedforward_layernorm") if post_norms else None,
    )


def _allocate_attention(config: ModelConfig, new: _Allocator, name: str) -> Attention:
    return Attention(
        qkv=new.linear(qkv_projections(config, name), config.hidden_size, bias=config.qkv_bias),
        output=new.output_linear(f"{name}.o_proj", config.q_size, config.hidden_size, bias=config.output_bias),
        q_norm=new.norm(config, f"{name}.q_norm", config.head_dim) if config.qk_norm else None,
        k_norm=new.norm(config, f"{name}.k_norm", config.head_dim) if config.qk_norm else None,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
    )


def _allocate_mlp(config: ModelConfig, new: _Allocator, name: str) -> MLP:
    return MLP(
        gate_up=new.linear(gate_up_projections(config, name), config.hidden_size, bias=config.mlp_bias),
        down=new.output_linear(f"{name}.down_proj", config.intermediate_size, config.hidden_size, bias=config.mlp_bias),
        activation=config.activation,
    )
