"""Models out of GGUF files of the Llama and Qwen families, dequantized to float32 (package `gguf`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.engines.embedded.model_config import Family, ModelConfig
from pointsman.edge.engines.embedded.weights import Array

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_DIVISORS = "rope_freqs.weight"
"""How converters write the scaled positions of Llama 3.1 and later."""
_FAMILIES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


class GgufFile:
    """One file. Raises ModelFileError for one that can't be used, or where the package is not installed."""

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError:
            raise ModelFileError(
                f"{path}: GGUF files need the package gguf: pip install 'pointsman[embedded]'"
            ) from None
        self._path = path
        self._dequantize = gguf.dequantize
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ModelFileError(f"{path}: can't be read as a GGUF file: {error}") from None
        self.metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.config = self._read_config()

    def read(self, name: str) -> Array:
        """A tensor by its name in a Hugging Face directory. Raises KeyError when there is none."""
        tensor = self._tensors[_name_here(name)]
        values: Array = np.asarray(self._dequantize(tensor.data, tensor.tensor_type), np.float32)
        if self.config.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = self.config.heads if name.endswith("q_proj.weight") else self.config.kv_heads
            values = _halves(values, heads)
        return values

    def _read_config(self) -> ModelConfig:
        said = self.metadata
        family = _FAMILIES.get(str(said.get("general.architecture")))
        if family is None:
            known = ", ".join(_FAMILIES)
            raise ModelFileError(f"{self._path}: architecture {said.get('general.architecture')!r}; there are {known}")

        def number(key: str, default: float | None = None) -> float:
            value = said.get(f"{family}.{key}", default)
            if not isinstance(value, int | float):
                raise ModelFileError(f"{self._path}: {family}.{key} is missing")
            return value

        hidden, heads = int(number("embedding_length")), int(number("attention.head_count"))
        embeddings = self._tensors.get("token_embd.weight")
        if embeddings is None:
            raise ModelFileError(f"{self._path}: tensor token_embd.weight is missing: the file holds no whole model")
        if heads < 1:
            raise ModelFileError(f"{self._path}: {family}.attention.head_count must be at least 1, not {heads}")
        head_dim = int(number("attention.key_length", hidden // heads))
        turned = int(number("rope.dimension_count", head_dim))
        if turned != head_dim:
            raise ModelFileError(
                f"{self._path}: {family}.rope.dimension_count is {turned}: only whole heads ({head_dim}) are supported"
            )
        scaling = str(said.get(f"{family}.rope.scaling.type", "none"))
        if scaling not in ("none", "linear"):
            raise ModelFileError(
                f"{self._path}: {family}.rope.scaling.type: {scaling!r} is not supported; there are none, linear"
            )
        eos = said.get("tokenizer.ggml.eos_token_id")
        return ModelConfig(
            family=family,
            vocabulary=int(embeddings.shape[1]),
            hidden=hidden,
            feed_forward=int(number("feed_forward_length")),
            layers=int(number("block_count")),
            heads=heads,
            kv_heads=int(number("attention.head_count_kv", heads)),
            head_dim=head_dim,
            positions=int(number("context_length")),
            rms_eps=number("attention.layer_norm_rms_epsilon"),
            rope_theta=number("rope.freq_base", 10_000.0),
            rope_factor=number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
            rope_divisors=self._divisors(),
            tied="output.weight" not in self._tensors,
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            eos_ids=() if eos is None else (int(eos),),
        )

    def _divisors(self) -> tuple[float, ...]:
        tensor = self._tensors.get(_DIVISORS)
        return () if tensor is None else tuple(map(float, np.asarray(tensor.data, np.float32)))


def _name_here(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if parts[:2] != ["model", "layers"] or len(parts) < 5:
        raise KeyError(name)
    return f"blk.{parts[2]}.{_LAYER['.'.join(parts[3:-1])]}.{parts[-1]}"


def _halves(values: Array, heads: int) -> Array:
    """Rotary pairs of Llama lie side by side in a GGUF file, and half a head apart in a Hugging Face directory."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
