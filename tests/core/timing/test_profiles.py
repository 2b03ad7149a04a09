from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.profiles import Validity, profile, profile_from, profile_names


@pytest.mark.parametrize("name", profile_names())
def test_each_profile_has_usable_numbers(name: str) -> None:
    found = profile(name)
    assert found.name == name
    assert found.num_blocks(16) * 16 <= found.kv_tokens
    assert found.num_blocks(16) >= 1000
    assert found.kv_bytes_per_token > 0
    assert found.source
    assert profile_from(name) is found
    assert found.engine in ("none", "estimate") or found.valid is not None
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


@pytest.mark.parametrize("name", ["h100/llama-8b", "h100/llama-70b-tp8", "h200/qwen3-235b-tp4", "a100/opt-66b-tp4"])
def test_names_say_what_a_row_is(name: str) -> None:
    found = profile(name)
    hardware, _, model = name.partition("/")
    assert found.gpu.lower() == hardware
    assert found.tensor_parallel == (int(model[-1]) if "-tp" in model else 1)


def test_a_range_says_what_was_not_measured() -> None:
    valid = Validity((1024, 8192), (128, 1024), (4, 64))
    assert valid.outside(4096, 1024, 4) == ()
    assert valid.outside() == ()
    assert valid.outside(32_000, None, 128) == (
        "prompts of 32,000 tokens (measured: 1,024-8,192)",
        "128 sequences side by side (measured: 4-64)",
    )
    assert str(valid) == "prompts 1,024-8,192, answers 128-1,024, side by side 4-64"


def test_an_estimate_is_made_of_what_its_text_says() -> None:
    found = profile_from("estimate:gpu=l40s,params=14b,precision=fp8,tp=2")
    assert (found.gpu, found.tensor_parallel, found.model) == ("L40S", 2, "14B fp8")
    assert profile_from("estimate:gpu=a100,model=llama-8b").step == profile("a100/llama-8b").step
    mixture = profile_from("estimate:gpu=h100, params=30b, active=3b, layers=48, kv_bytes=98304")
    assert mixture.kv_bytes_per_token == 98_304
    assert mixture.step.a_ms < profile_from("estimate:gpu=h100,params=30b").step.a_ms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("estimate:params=8b", "gpu and one of model and params are needed: estimate:gpu=h100"),
        ("estimate:gpu=h100", "gpu and one of model and params"),
        ("estimate:gpu=h100,params=8b,model=llama-8b", "gpu and one of model and params"),
        ("estimate:gpu=h100,params", "'params' is not key=value"),
        ("estimate:", "'' is not key=value"),
        ("estimate:gpu=h100,parms=8b", r"'parms' is not known; did you mean 'params'\?"),
        ("estimate:gpu=h100,params=8b,params=9b", "params is given twice"),
        ("estimate:gpu=h100,params=8", "a number with m, b or t"),
        ("estimate:gpu=h100,params=0b", "a number with m, b or t"),
        ("estimate:gpu=h100,params=8b,tp=0", "tp must be a whole number of at least 1"),
        ("estimate:gpu=h100,params=8b,precision=fp32", "Known: bf16, fp8"),
        ("estimate:gpu=h100,model=llama-8b,active=1b", "active go with params="),
        ("estimate:gpu=tpu,params=8b", "GPU 'tpu' is not known"),
        ("estimate:gpu=h100,params=70b", "raise tp"),
    ],
)
def test_a_wrong_estimate_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        profile_from(text)
