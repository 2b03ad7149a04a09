"""Turns a GGUF file of the Llama architecture into a Hugging Face directory that vLLM loads, with bfloat16 weights.

Runs in the engines' environment: needs `gguf`, `torch`, `safetensors` and `tokenizers`.
usage: python -m harness.gguf_model FILE.gguf DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import gguf_tokenizer

_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_OUTPUT = {"output.weight": "lm_head.weight"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def weight_name(name: str) -> str:
    """The name that a tensor has in a Hugging Face directory. Raises KeyError for one that Llama does not have."""
    if not name.startswith("blk."):
        return {**_TOP, **_OUTPUT}[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"


def weights(source: Path, meta: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and bfloat16 tensor of each weight."""
    import torch  # type: ignore[import-not-found]
    from gguf import GGUFReader, dequantize  # type: ignore[import-not-found]

    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    for tensor in GGUFReader(source).tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = halves(values, int(heads[part]))
        yield weight_name(tensor.name), torch.tensor(values).to(torch.bfloat16).contiguous()


def halves(values: Any, heads: int) -> Any:
    """Rotary pairs lie side by side in a GGUF file, and half a head apart in a Hugging Face directory."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def config(meta: dict[str, Any], tied: bool) -> dict[str, Any]:
    """`config.json`, complete enough to compute with."""
    return gguf_tokenizer.config(meta) | {
        "rms_norm_eps": float(meta["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
    }


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    gguf_tokenizer.main()
    meta = gguf_tokenizer.metadata(source)
    tensors = dict(weights(source, meta))
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config(meta, tied="lm_head.weight" not in tensors), indent=1))


if __name__ == "__main__":
    main()
