"""ModelConfig: the shape of a decoder, from what a Hugging Face `config.json` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pointsman.core.model.errors import ModelFileError

Family = Literal["llama", "qwen2", "qwen3"]


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Rotary frequencies of Llama 3.1 and later: low ones are divided by `factor`, those between are blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder with grouped-query attention, rotary positions and gated feed-forward layers."""

    family: Family
    vocabulary: int
    """Token ids are below it."""
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    positions: int
    """Longest context in tokens."""
    rms_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_factor: float = 1.0
    """Positions are divided by it (linear scaling)."""
    rope_llama3: Llama3Scaling | None = None
    rope_divisors: tuple[float, ...] = ()
    """Of the frequency of each pair, where a file has them ready; none: all are 1."""
    tied: bool = True
    """Output weights are the embeddings."""
    qkv_bias: bool = False
    qk_norm: bool = False
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocabulary", "hidden", "feed_forward", "layers", "heads", "kv_heads", "head_dim", "positions"):
            if getattr(self, name) < 1:
                raise ModelFileError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ModelFileError(f"{self.heads} heads can't share {self.kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise ModelFileError(f"head_dim is {self.head_dim}: rotary positions need an even one")
        if self.rope_divisors and (len(self.rope_divisors) != self.head_dim // 2 or min(self.rope_divisors) <= 0):
            raise ModelFileError(
                f"rope_divisors: expected {self.head_dim // 2} numbers above 0, not {list(self.rope_divisors)}"
            )

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads


class _RopeScaling(msgspec.Struct):
    rope_type: str | None = None
    type: str | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    rope_theta: float | None = None


class _HubType(msgspec.Struct):
    model_type: str


class _HubConfig(_HubType):
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: _RopeScaling | None = None
    rope_parameters: _RopeScaling | None = None
    """Where newer files keep both of them."""
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    use_sliding_window: bool = False
    layer_types: list[str] | None = None
    eos_token_id: int | list[int] | None = None
    quantization_config: dict[str, Any] | None = None


def config_of_hub(text: bytes, where: str) -> ModelConfig:
    """From the bytes of a `config.json`. Raises ModelFileError that names the key which can't be used."""
    try:
        # The type first: others have other keys, and their lack would be what is complained of.
        family = _family(msgspec.json.decode(text, type=_HubType).model_type, where)
        said = msgspec.json.decode(text, type=_HubConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{where}: {error}") from None
    for key, fault in _not_supported(said, family).items():
        raise ModelFileError(f"{where}: {key}: {fault}")
    scaling = said.rope_parameters or said.rope_scaling or _RopeScaling()
    kind = scaling.rope_type or scaling.type or "default"
    theta = said.rope_theta or scaling.rope_theta or 10_000.0
    eos = said.eos_token_id
    if said.num_attention_heads < 1:
        raise ModelFileError(f"{where}: num_attention_heads must be at least 1, not {said.num_attention_heads}")
    return ModelConfig(
        family=family,
        vocabulary=said.vocab_size,
        hidden=said.hidden_size,
        feed_forward=said.intermediate_size,
        layers=said.num_hidden_layers,
        heads=said.num_attention_heads,
        kv_heads=said.num_key_value_heads or said.num_attention_heads,
        head_dim=said.head_dim or said.hidden_size // said.num_attention_heads,
        positions=said.max_position_embeddings,
        rms_eps=said.rms_norm_eps,
        rope_theta=theta,
        rope_factor=scaling.factor if kind == "linear" else 1.0,
        rope_llama3=_llama3(scaling) if kind == "llama3" else None,
        tied=said.tie_word_embeddings,
        qkv_bias=family == "qwen2" or said.attention_bias,
        qk_norm=family == "qwen3",
        eos_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
    )


def _family(model_type: str, where: str) -> Family:
    families: Mapping[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
    family = families.get(model_type)
    if family is None:
        raise ModelFileError(f"{where}: model_type {model_type!r} is not known; there are {', '.join(families)}")
    return family


def _not_supported(said: _HubConfig, family: Family) -> dict[str, str]:
    """Keys whose values would need something that is not there."""
    faults: dict[str, str] = {}
    if said.quantization_config:
        faults["quantization_config"] = "quantized weights are not supported; take the model's unquantized files"
    if said.hidden_act != "silu":
        faults["hidden_act"] = f"{said.hidden_act!r} is not supported, only silu is"
    if said.mlp_bias:
        faults["mlp_bias"] = "true is not supported"
    if said.attention_bias and family != "qwen2":
        faults["attention_bias"] = f"true is not supported for {family}"
    if said.use_sliding_window or any(kind != "full_attention" for kind in said.layer_types or ()):
        faults["use_sliding_window"] = "sliding windows are not supported, only full attention is"
    scaling = said.rope_parameters or said.rope_scaling
    kind = (scaling.rope_type or scaling.type or "default") if scaling is not None else "default"
    if kind not in ("default", "linear", "llama3"):
        faults["rope_scaling"] = f"{kind!r} is not supported; there are default, linear, llama3"
    return faults


def _llama3(scaling: _RopeScaling) -> Llama3Scaling:
    return Llama3Scaling(
        scaling.factor,
        scaling.low_freq_factor,
        scaling.high_freq_factor,
        scaling.original_max_position_embeddings,
    )
