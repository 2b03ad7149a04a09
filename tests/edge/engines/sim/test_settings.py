from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.engines.sim.tokenizer import SimTokenizer

OUTPUT_IDS = SimTokenizer().output_ids


def test_the_profile_gives_speed_and_blocks() -> None:
    config = SimSettings(profile="h100/qwen3-32b-tp2", block_size=32).engine_config(OUTPUT_IDS)
    assert (config.num_blocks, config.step.a_ms) == (307_328 // 32, 13.83)
    assert SimSettings(num_blocks=4096).engine_config(OUTPUT_IDS).num_blocks == 4096


def test_context_and_budget_follow_what_is_given() -> None:
    small = SimSettings(num_blocks=100, max_num_seqs=10_000).engine_config(OUTPUT_IDS)
    assert (small.max_model_len, small.max_batched_tokens) == (1600, 10_000)
    usual = SimSettings().engine_config(OUTPUT_IDS)
    assert (usual.max_model_len, usual.max_batched_tokens) == (32_768, 8192)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"speedup": 0}, "speedup must be above 0"),
        ({"model": ""}, "needs a model name"),
        ({"default_output_tokens": 0}, "default_output_tokens"),
        ({"replay": "tcp://127.0.0.1:*"}, "set kv_events"),
        ({"replay_batches": 0}, "replay_batches"),
        ({"loras": ("sim",)}, "name of the base model"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"num_blocks": 4, "max_model_len": 100}, "more than the KV cache holds"),
        ({"profile": "h100"}, "is not known\\. Known: instant"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimSettings(**fields).engine_config(OUTPUT_IDS)  # type: ignore[arg-type]
