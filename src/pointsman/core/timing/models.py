"""What of a model decides its speed: weights read, layers passed, bytes of KV a token.

KV bytes a token = 2 * layers * KV heads * head size * 2 bytes; latent attention: layers * (latent + rope) * 2 bytes.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from pointsman.core.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one model."""

    name: str
    parameters: float
    active_parameters: float
    """Used for one token; fewer than `parameters` in mixtures of experts."""
    layers: int
    kv_bytes_per_token: int
    """With 16-bit KV, over all layers."""
    latent: bool = False
    """Latent attention: each GPU keeps the whole latent, so tensor parallelism does not divide its bytes."""

    def __post_init__(self) -> None:
        if not 0 < self.active_parameters <= self.parameters:
            raise ConfigError(
                f"{self.name}: active parameters ({self.active_parameters:g}) must be above 0 and at most all of them "
                f"({self.parameters:g})"
            )
        if self.layers < 1 or self.kv_bytes_per_token < 1:
            raise ConfigError(f"{self.name}: layers and KV bytes a token must be at least 1")

    @property
    def mixture(self) -> bool:
        """Whether a token uses only a part of the weights."""
        return self.active_parameters < self.parameters

    @property
    def width(self) -> float:
        """Size of a token between layers, from 12·width² parameters a layer."""
        return math.sqrt(self.active_parameters / (12 * self.layers))


def _dense(name: str, billions: float, layers: int, kv_bytes: int) -> ModelShape:
    return ModelShape(name, billions * 1e9, billions * 1e9, layers, kv_bytes)


_SHAPES = {
    "llama-8b": _dense("Llama-3.1-8B", 8.03, 32, 131_072),
    "llama-70b": _dense("Llama-3.1-70B", 70.6, 80, 327_680),
    "llama2-70b": _dense("Llama-2-70B", 69, 80, 327_680),
    "qwen3-32b": _dense("Qwen3-32B", 32.8, 64, 262_144),
    "opt-13b": _dense("OPT-13B", 13, 40, 819_200),
    "opt-66b": _dense("OPT-66B", 66, 64, 2_359_296),
    "qwen3-235b": ModelShape("Qwen3-235B-A22B", 235e9, 22e9, 94, 192_512),
    "minimax-m2.5": ModelShape("MiniMax-M2.5", 230e9, 10e9, 62, 253_952),
    "deepseek-r1": ModelShape("DeepSeek-R1", 671e9, 37e9, 61, 70_300, latent=True),
    "kimi-k2.5": ModelShape("Kimi-K2.5", 1_040e9, 32e9, 61, 70_300, latent=True),
    "glm-5": ModelShape("GLM-5", 744e9, 40e9, 78, 93_000, latent=True),
}

WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625, "int4": 0.5625}
"""Bytes a parameter by precision; four-bit weights carry their scales."""


def model_shape(name: str) -> ModelShape:
    """The shape of a known model, named as profiles name it; ConfigError names the known ones."""
    found = _SHAPES.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), _SHAPES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ConfigError(f"model {name!r} is not known{hint} Known: {', '.join(_SHAPES)}. Or give params=.")
    return found


def usual_shape(
    parameters: float,
    active_parameters: float | None = None,
    layers: int | None = None,
    kv_bytes_per_token: int | None = None,
) -> ModelShape:
    """A shape from the number of parameters; what is not given is as usual for dense models with grouped attention.

    Layers and KV bytes grow with the 0.42th and 0.43th power of the active parameters: a line through the models of 8,
    32 and 70 billion above.
    """
    active = parameters if active_parameters is None else active_parameters
    name = f"{parameters / 1e9:.3g}B" + ("" if active == parameters else f"-A{active / 1e9:.3g}B")
    if not 0 < active <= parameters:
        raise ConfigError(f"{name}: active parameters must be above 0 and at most all parameters")
    size = active / 8.03e9
    return ModelShape(
        name,
        parameters,
        active,
        max(1, round(32 * size**0.42)) if layers is None else layers,
        max(1, round(131_072 * size**0.43)) if kv_bytes_per_token is None else kv_bytes_per_token,
    )
