"""Weights of a decoder: where they come from, and the form in which it computes with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.embedded.model_config import ModelConfig

Array = NDArray[np.float32]
ReadTensor = Callable[[str], Array]
"""Name as in a Hugging Face directory → values. Raises KeyError when there is none of that name."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer. Matrices are [in, out], so that rows times them are rows."""

    attention_norm: Array
    qkv: Array
    """Query, key and value matrices side by side."""
    qkv_bias: Array | None
    query_norm: Array | None
    key_norm: Array | None
    attention_out: Array
    feed_forward_norm: Array
    gate_up: Array
    """Both matrices side by side."""
    down: Array


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the whole model."""

    embeddings: Array
    """[vocabulary, hidden]."""
    layers: tuple[LayerWeights, ...]
    norm: Array
    output: Array
    """[hidden, vocabulary]."""

    @property
    def bytes(self) -> int:
        """Memory that they take, shared arrays once."""
        arrays = {id(array): array.nbytes for array in (self.embeddings, self.norm, self.output)}
        for layer in self.layers:
            for name in LayerWeights.__slots__:
                array = getattr(layer, name)
                if array is not None:
                    arrays[id(array)] = array.nbytes
        return sum(arrays.values())


def load_weights(config: ModelConfig, read: ReadTensor, where: str) -> Weights:
    """All weights that a configuration needs. Raises ModelFileError that names the tensor that is missing or wrong."""

    def tensor(name: str, *shape: int) -> Array:
        try:
            values = read(name)
        except KeyError:
            raise ModelFileError(f"{where}: tensor {name} is missing") from None
        if values.shape != shape:
            raise ModelFileError(f"{where}: tensor {name} has shape {list(values.shape)}, expected {list(shape)}")
        return np.ascontiguousarray(values, dtype=np.float32)

    embeddings = tensor("model.embed_tokens.weight", config.vocabulary, config.hidden)
    output = embeddings if config.tied else tensor("lm_head.weight", config.vocabulary, config.hidden)
    return Weights(
        embeddings=embeddings,
        layers=tuple(_layer(config, number, tensor) for number in range(config.layers)),
        norm=tensor("model.norm.weight", config.hidden),
        output=_columns(output),
    )


def _layer(config: ModelConfig, number: int, tensor: Callable[..., Array]) -> LayerWeights:
    def of(name: str, *shape: int) -> Array:
        return tensor(f"model.layers.{number}.{name}", *shape)

    hidden, wide, narrow = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    sizes = {"q": wide, "k": narrow, "v": narrow}
    bias = [of(f"self_attn.{part}_proj.bias", size) for part, size in sizes.items()] if config.qkv_bias else None
    return LayerWeights(
        attention_norm=of("input_layernorm.weight", hidden),
        qkv=_columns(*(of(f"self_attn.{part}_proj.weight", size, hidden) for part, size in sizes.items())),
        qkv_bias=None if bias is None else np.concatenate(bias),
        query_norm=of("self_attn.q_norm.weight", config.head_dim) if config.qk_norm else None,
        key_norm=of("self_attn.k_norm.weight", config.head_dim) if config.qk_norm else None,
        attention_out=_columns(of("self_attn.o_proj.weight", hidden, wide)),
        feed_forward_norm=of("post_attention_layernorm.weight", hidden),
        gate_up=_columns(
            of("mlp.gate_proj.weight", config.feed_forward, hidden),
            of("mlp.up_proj.weight", config.feed_forward, hidden),
        ),
        down=_columns(of("mlp.down_proj.weight", hidden, config.feed_forward)),
    )


def _columns(*matrices: Array) -> Array:
    """[out, in] matrices as one [in, out] matrix."""
    return np.ascontiguousarray(np.concatenate(matrices).T)
