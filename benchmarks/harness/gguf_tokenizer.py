"""Turns the metadata of a GGUF file with a byte-level BPE vocabulary into a Hugging Face directory without weights.

Dynamo's front end tokenizes and wants `config.json`, `tokenizer.json` and `tokenizer_config.json`. Runs in the peers'
environment: needs `gguf` and `tokenizers`. usage: gguf_tokenizer.py FILE.gguf DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_CONTROL_TOKEN = 3
"""Token type of GGUF for special tokens such as the end of a turn."""


def metadata(path: Path) -> dict[str, Any]:
    """All keys of the file's header; arrays as lists."""
    from gguf import GGUFReader  # type: ignore[import-not-found]

    return {name: field.contents() for name, field in GGUFReader(path).fields.items()}


def tokenizer_json(meta: dict[str, Any]) -> str:
    """`tokenizer.json`: digits split one by one, then byte-level BPE, as SmolLM2 was trained."""
    from tokenizers import (  # type: ignore[import-not-found]
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return str(tokenizer.to_str())


def config(meta: dict[str, Any]) -> dict[str, Any]:
    """`config.json` of a Llama model with the file's sizes."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": int(meta["llama.embedding_length"]),
        "intermediate_size": int(meta["llama.feed_forward_length"]),
        "num_hidden_layers": int(meta["llama.block_count"]),
        "num_attention_heads": int(meta["llama.attention.head_count"]),
        "num_key_value_heads": int(meta["llama.attention.head_count_kv"]),
        "max_position_embeddings": int(meta["llama.context_length"]),
        "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(meta["tokenizer.ggml.eos_token_id"]),
        "torch_dtype": "bfloat16",
    }


def tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer_config.json` with the chat template."""
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[int(meta["tokenizer.ggml.bos_token_id"])],
        "eos_token": tokens[int(meta["tokenizer.ggml.eos_token_id"])],
        "chat_template": meta["tokenizer.chat_template"],
        "model_max_length": int(meta["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
    }


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    meta = metadata(source)
    target.mkdir(parents=True, exist_ok=True)
    (target / "tokenizer.json").write_text(tokenizer_json(meta))
    (target / "config.json").write_text(json.dumps(config(meta), indent=1))
    (target / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(meta), indent=1))
    generation = {key: config(meta)[key] for key in ("bos_token_id", "eos_token_id")}
    (target / "generation_config.json").write_text(json.dumps(generation, indent=1))


if __name__ == "__main__":
    main()
