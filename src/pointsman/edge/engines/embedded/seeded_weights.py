"""A model out of a seed: the same weights everywhere, without any file."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pointsman.edge.engines.embedded.model_config import Family, Llama3Scaling, ModelConfig
from pointsman.edge.engines.embedded.weights import Array, ReadTensor

_SPREAD = 0.08
"""Standard deviation of embeddings: answers of a model of noise then differ by their prompts."""


def tiny_config(vocabulary: int, family: Family = "llama", eos_ids: tuple[int, ...] = ()) -> ModelConfig:
    """The default model: two layers, a step of which takes less than a millisecond."""
    return ModelConfig(
        family=family,
        vocabulary=vocabulary,
        hidden=64,
        feed_forward=160,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        positions=8192,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        eos_ids=eos_ids,
    )


def seeded(config: ModelConfig, seed: int) -> ReadTensor:
    """Tensors by name, each from a stream of its own: which of them are read, and in which order, changes nothing."""
    shapes = _shapes(config)

    def read(name: str) -> Array:
        shape = shapes[name]
        if name.endswith("norm.weight"):
            return np.ones(shape, np.float32)
        random = np.random.default_rng([seed, *name.encode()])
        spread = _SPREAD if len(shape) == 1 or "embed" in name else 1.0 / math.sqrt(shape[1])
        return (spread * random.standard_normal(shape)).astype(np.float32)

    return read


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, wide, narrow = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_norm.weight": (config.head_dim,),
        "self_attn.k_norm.weight": (config.head_dim,),
        "self_attn.o_proj.weight": (hidden, wide),
        "mlp.gate_proj.weight": (config.feed_forward, hidden),
        "mlp.up_proj.weight": (config.feed_forward, hidden),
        "mlp.down_proj.weight": (hidden, config.feed_forward),
    }
    for part, size in (("q", wide), ("k", narrow), ("v", narrow)):
        layer[f"self_attn.{part}_proj.weight"] = (size, hidden)
        layer[f"self_attn.{part}_proj.bias"] = (size,)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocabulary, hidden),
        "lm_head.weight": (config.vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for number in range(config.layers):
        shapes.update({f"model.layers.{number}.{name}": shape for name, shape in layer.items()})
    return shapes


def with_llama3_rope(config: ModelConfig) -> ModelConfig:
    """The same model with the scaled positions of Llama 3.1, so that these are held against other implementations."""
    return replace(config, rope_llama3=Llama3Scaling(8.0, 1.0, 4.0, 64), rope_theta=500.0)
