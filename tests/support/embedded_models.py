"""Small models for tests, made from a seed."""

from __future__ import annotations

from functools import cache

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.engines.embedded.batch import Part
from pointsman.edge.engines.embedded.decoder import Decoder
from pointsman.edge.engines.embedded.engine import EmbeddedEngine
from pointsman.edge.engines.embedded.kv_blocks import KvBlocks
from pointsman.edge.engines.embedded.model_config import ModelConfig
from pointsman.edge.engines.embedded.seeded_weights import seeded
from pointsman.edge.engines.embedded.weights import Array, load_weights

BLOCK_SIZE = 16


@cache
def decoder(config: ModelConfig, seed: int = 7) -> Decoder:
    return Decoder(config, load_weights(config, seeded(config, seed), "seed"))


def whole(model: Decoder, tokens: list[int], blocks: int = 40) -> tuple[Array, KvBlocks, list[int]]:
    """Logits after a prompt that is computed alone and in one go, and its blocks."""
    kv = KvBlocks(model.config, blocks, BLOCK_SIZE)
    table = list(range(1, 1 + -(-len(tokens) // BLOCK_SIZE)))
    return model.forward([Part(tokens, 0, table, True)], kv)[0], kv, table


def greedy(model: Decoder, prompt: list[int], count: int) -> list[int]:
    """The next tokens, each the likeliest."""
    kv = KvBlocks(model.config, 40, BLOCK_SIZE)
    table = list(range(1, 1 + -(-(len(prompt) + count) // BLOCK_SIZE)))
    tokens, computed = list(prompt), 0
    while len(tokens) < len(prompt) + count:
        logits = model.forward([Part(tokens[computed:], computed, table, True)], kv)
        computed = len(tokens)
        tokens.append(int(logits[0].argmax()))
    return tokens[len(prompt) :]


def embedded_engine(model: Decoder, transfers: bool = False, **changes: int | bool) -> EmbeddedEngine:
    settings = {"num_blocks": 60, "block_size": 16, "max_num_seqs": 8, "max_batched_tokens": 64, "max_model_len": 256}
    config = EngineConfig(step=StepCoefficients(0, 0, 0, 0), **(settings | changes))
    return EmbeddedEngine(config, model, transfers=transfers)
