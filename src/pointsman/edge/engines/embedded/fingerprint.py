"""Fingerprint of a model: engines whose fingerprints are equal compute the same KV."""

from __future__ import annotations

import numpy as np
import xxhash

from pointsman.edge.engines.embedded.model_config import ModelConfig
from pointsman.edge.engines.embedded.weights import LayerWeights, Weights


def fingerprint(config: ModelConfig, weights: Weights) -> str:
    """Of the configuration and all weights; 10 GB of them take about a second."""
    digest = xxhash.xxh3_128(repr(config).encode())
    for layer in weights.layers:
        for name in LayerWeights.__slots__:
            array = getattr(layer, name)
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
    for array in (weights.embeddings, weights.norm, weights.output):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
