"""Rotary positions: halves of each head turned by an angle that grows with the position."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pointsman.edge.engines.embedded.model_config import ModelConfig
from pointsman.edge.engines.embedded.weights import Array


class Rope:
    """Cosines and sines of all positions of a model, in float32: [positions, head_dim / 2] each."""

    def __init__(self, config: ModelConfig) -> None:
        angles = np.arange(config.positions, dtype=np.float32)[:, None] / np.float32(config.rope_factor)
        angles = angles * frequencies(config)[None, :]
        self._cos = np.cos(angles, dtype=np.float32)
        self._sin = np.sin(angles, dtype=np.float32)

    def turn(self, heads: Array, positions: NDArray[np.intp]) -> Array:
        """`heads` [rows, heads, head_dim], each row turned to its position."""
        cos, sin = self._cos[positions][:, None, :], self._sin[positions][:, None, :]
        half = heads.shape[-1] // 2
        first, second = heads[..., :half], heads[..., half:]
        turned = np.empty_like(heads)
        turned[..., :half] = first * cos - second * sin
        turned[..., half:] = second * cos + first * sin
        return turned


def frequencies(config: ModelConfig) -> Array:
    """Radians a position for each pair: theta^(-2i / head_dim), and Llama 3.1's scaling of low ones where it is on."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    inverse = (np.float32(1.0) / np.float32(config.rope_theta) ** exponents).astype(np.float32)
    if config.rope_divisors:
        inverse = (inverse / np.array(config.rope_divisors, np.float32)).astype(np.float32)
    scaling = config.rope_llama3
    if scaling is None:
        return inverse
    wavelengths = 2 * math.pi / inverse
    low = scaling.original_positions / scaling.low_freq_factor
    high = scaling.original_positions / scaling.high_freq_factor
    blend = (scaling.original_positions / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - blend) * inverse / scaling.factor + blend * inverse
    scaled = np.where(wavelengths > low, inverse / scaling.factor, np.where(wavelengths < high, inverse, between))
    return scaled.astype(np.float32)
