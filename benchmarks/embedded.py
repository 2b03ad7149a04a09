"""How fast the embedded engine computes: prompts, decode steps of several batches, memory. No HTTP.

Times are CPU time of the one thread that computes, the least of all rounds: what else runs on the machine adds little.

usage: scripts/bench embedded [--model seed:0|DIRECTORY|FILE.gguf] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import time

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.engines.embedded.blas_threads import limit_blas_threads
from pointsman.edge.engines.embedded.engine import EmbeddedEngine
from pointsman.edge.engines.embedded.loaded_model import DEFAULT_MODEL, LoadedModel, load_model
from pointsman.edge.engines.embedded.settings import EmbeddedSettings
from pointsman.edge.engines.openai_server.sampling import SampledRequest

BATCHES = (1, 8, 32)
PROMPT_TOKENS = 512
CONTEXT_TOKENS = 256
"""Before each decoded token."""


def engine_of(model: LoadedModel) -> EmbeddedEngine:
    """Without a prefix cache, with room for the largest batch."""
    blocks = BATCHES[-1] * (CONTEXT_TOKENS + 64) // 16
    settings = EmbeddedSettings(num_blocks=blocks, max_model_len=1024, max_batched_tokens=512, prefix_caching=False)
    return EmbeddedEngine(settings.engine_config(model.config), model.decoder)


def step_ms(engine: EmbeddedEngine) -> float:
    """Of one step, whatever it is."""
    began = time.thread_time()
    work = engine.begin(0.0)
    if work is None:
        raise RuntimeError("nothing to compute")
    engine.compute(work)
    engine.finish(0.0)
    return 1000 * (time.thread_time() - began)


def prompt_ms(model: LoadedModel, rounds: int) -> float:
    """Of a prompt of PROMPT_TOKENS, computed in one step."""
    engine = engine_of(model)
    times = []
    for number in range(rounds):
        prompt = [(7 * number + place) % model.text.vocabulary for place in range(PROMPT_TOKENS)]
        engine.model.add(SampledRequest(str(number), prompt, 1))
        times.append(step_ms(engine))
    return min(times)


def decode_ms(model: LoadedModel, batch: int, rounds: int) -> float:
    """Of a step that decodes `batch` sequences."""
    engine = engine_of(model)
    for number in range(batch):
        prompt = [(11 * number + place) % model.text.vocabulary for place in range(CONTEXT_TOKENS)]
        engine.model.add(SampledRequest(str(number), prompt, rounds + 40))
    while any(sequence.computed < CONTEXT_TOKENS for sequence in engine.model.requests()):
        step_ms(engine)
    return min(step_ms(engine) for _ in range(rounds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    given = parser.parse_args()
    limit_blas_threads(1)
    began = time.perf_counter()
    try:
        model = load_model(given.model)
    except PointsmanError as error:
        print(error, file=sys.stderr)
        return 2
    loaded_s = time.perf_counter() - began
    config = model.config
    token_bytes = 2 * 4 * config.layers * config.kv_heads * config.head_dim
    rounds = 3 if given.quick else 12
    prompt = prompt_ms(model, rounds)
    print(f"{model.name}: loaded in {loaded_s:.2f} s, weights {model.decoder.weight_bytes / 2**20:.1f} MiB, ", end="")
    print(f"KV {token_bytes:,} bytes a token, {config.layers} layers, tiles of {model.decoder.tile} rows")
    print("| | CPU ms | tokens/s |\n|---|---:|---:|")
    print(f"| prompt of {PROMPT_TOKENS} tokens | {prompt:.1f} | {1000 * PROMPT_TOKENS / prompt:,.0f} |")
    for batch in BATCHES:
        took = decode_ms(model, batch, rounds)
        print(f"| step of {batch} after {CONTEXT_TOKENS} tokens | {took:.2f} | {1000 * batch / took:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
