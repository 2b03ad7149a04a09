"""Directories of tiny models, as the hub has them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pointsman.edge.engines.embedded.model_config import Family, ModelConfig
from pointsman.edge.engines.embedded.seeded_weights import seeded, tiny_config
from pointsman.edge.engines.embedded.tiny_text import END_OF_ANSWER, SPECIAL, TEMPLATE, tiny_text


def hub_config(config: ModelConfig) -> dict[str, object]:
    """`config.json` of a model."""
    return {
        "model_type": config.family,
        "vocab_size": config.vocabulary,
        "hidden_size": config.hidden,
        "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.positions,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
    }


def write_hub_folder(folder: Path, *, seed: int = 0, family: Family = "llama") -> Path:
    """The tiny model `seed:N` as files."""
    folder.mkdir(parents=True, exist_ok=True)
    text = tiny_text()
    config = tiny_config(text.vocabulary, family)
    read = seeded(config, seed)
    tensors: dict[str, np.ndarray] = {"model.embed_tokens.weight": read("model.embed_tokens.weight")}
    tensors["model.norm.weight"] = read("model.norm.weight")
    parts = ["input_layernorm.weight", "post_attention_layernorm.weight"]
    parts += [f"self_attn.{name}_proj.weight" for name in "qkvo"]
    parts += [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    if config.qkv_bias:
        parts += [f"self_attn.{name}_proj.bias" for name in "qkv"]
    if config.qk_norm:
        parts += [f"self_attn.{name}_norm.weight" for name in "qk"]
    for layer in range(config.layers):
        for part in parts:
            name = f"model.layers.{layer}.{part}"
            tensors[name] = read(name)
    save_file(tensors, folder / "model.safetensors")
    text._tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(hub_config(config)))
    words = {"chat_template": TEMPLATE, "eos_token": SPECIAL[END_OF_ANSWER]}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder
