"""Records what transformers generates greedily with the weights of the embedded engine's seeded models.

Runs in the environment of the real engines, which has torch and transformers:

    PYTHONPATH=src .venv-engines/bin/python tests/engines/setup/record_embedded.py FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from pointsman.edge.engines.embedded.model_config import Family, ModelConfig
from pointsman.edge.engines.embedded.seeded_weights import seeded, tiny_config, with_llama3_rope

SEED = 7
VOCABULARY = 500
PROMPTS = (1, 17, 200)
"""Lengths in tokens."""
ANSWER_TOKENS = 40
CASES: dict[str, ModelConfig] = {
    **{family: tiny_config(VOCABULARY, family) for family in ("llama", "qwen2", "qwen3")},
    "llama3 rope": with_llama3_rope(tiny_config(VOCABULARY)),
}


def prompt(length: int) -> list[int]:
    """Token ids of a recorded prompt."""
    return np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()


def _model(config: ModelConfig) -> Any:
    kinds: dict[Family, tuple[Any, Any]] = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    make_config, make_model = kinds[config.family]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    scaling = config.rope_llama3
    if scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    said = make_config(
        vocab_size=config.vocabulary,
        hidden_size=config.hidden,
        intermediate_size=config.feed_forward,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.positions,
        rms_norm_eps=config.rms_eps,
        rope_parameters=rope,
        tie_word_embeddings=config.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = make_model(said).to(torch.float32).eval()
    read = seeded(config, SEED)
    with torch.no_grad():
        for name, values in model.named_parameters():
            values.copy_(torch.from_numpy(read(name)))
    return model


def _record(config: ModelConfig) -> list[dict[str, Any]]:
    model = _model(config)
    rows = []
    for length in PROMPTS:
        ids = torch.tensor([prompt(length)])
        with torch.no_grad():
            logits = model(ids).logits[0, -1]
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER_TOKENS, do_sample=False
            )
        rows.append(
            {
                "prompt_tokens": length,
                "answer": out[0, length:].tolist(),
                "logits": [round(float(value), 5) for value in logits[:16]],
            }
        )
    return rows


def main() -> None:
    """Write the file that the command names."""
    torch.set_num_threads(1)
    recorded = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "seed": SEED,
        "vocabulary": VOCABULARY,
        "cases": {name: _record(config) for name, config in CASES.items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
