from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.profiles import profile, profile_names


@pytest.mark.parametrize("name", profile_names())
def test_each_profile_has_usable_numbers(name: str) -> None:
    found = profile(name)
    assert found.name == name
    assert found.num_blocks(16) * 16 <= found.kv_tokens
    assert found.num_blocks(16) >= 1000
    assert found.kv_bytes_per_token > 0
    assert found.source
    assert found.step.step_ms(1, 1000, 0) <= found.step.step_ms(64, 64_000, 8192)


def test_qwen_on_two_h100_holds_what_is_reported() -> None:
    found = profile("h100/qwen3-32b-tp2")
    assert found.num_blocks(16) == 307_328 // 16
    # A step with 64 decodes over 64 x 2,000 tokens and no prefill.
    assert found.step.step_ms(64, 128_000, 0) == pytest.approx(13.83 + 0.0483 * 64 + 0.0633 * 128)


def test_instant_takes_no_time() -> None:
    assert profile("instant").step.step_ms(256, 1_000_000, 8192) == 0


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"'h100/lama-8b' is not known; did you mean 'h100/llama-8b'\? Known: instant,"
    ):
        profile("h100/lama-8b")
    with pytest.raises(ConfigError, match=r"^profile 'nope' is not known\. Known: instant,"):
        profile("nope")
