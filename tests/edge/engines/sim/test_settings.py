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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"speedup": 0}, "speedup must be above 0"),
        ({"model": ""}, "needs a model name"),
        ({"default_output_tokens": 0}, "default_output_tokens"),
        ({"replay": "tcp://127.0.0.1:*"}, "set kv_events"),
        ({"replay_batches": 0}, "replay_batches"),
        ({"loras": ("sim",)}, "name of the base model"),
        ({"num_blocks": 4}, "more than the KV cache holds"),
        ({"profile": "h100"}, "Known profiles"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimSettings(**fields).engine_config(OUTPUT_IDS)  # type: ignore[arg-type]
