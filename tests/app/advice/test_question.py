"""Limits for somebody who names none."""

from __future__ import annotations

import pytest

from pointsman.app.advice.idle import idle_ttft_ms, work_ms
from pointsman.app.advice.question import assumed_slo
from pointsman.app.experiments.fleet import Profiles
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest


def _profiles(name: str) -> Profiles:
    found = profile(name)
    return Profiles(found, found, found)


@pytest.mark.parametrize(
    ("name", "prompt_tokens", "expected"),
    [
        ("h100/llama-8b", 1_000, "ttft=2s,tpot=50ms"),
        ("h100/llama-70b-tp4", 100_000, "ttft=20s,tpot=50ms"),
        ("tiny", 512, "ttft=2s,tpot=100ms"),
        ("instant", 512, "ttft=2s,tpot=50ms"),
    ],
)
def test_usual_limits_unless_prompts_or_engines_are_too_slow_for_them(
    name: str, prompt_tokens: int, expected: str
) -> None:
    trace = Trace("made", tuple(TraceRequest(float(n), prompt_tokens, 10) for n in range(20)))
    assert str(assumed_slo(trace, _profiles(name), 8_192)) == expected


def test_an_idle_worker_computes_a_long_prompt_in_several_steps() -> None:
    step = profile("h100/llama-8b").step
    once = idle_ttft_ms(profile("h100/llama-8b"), 8_000, 8_192)
    assert once == pytest.approx(
        step.a_ms + 8_000 * step.d_ms_per_prefill_token + 8_000**2 * step.q_ms_per_square_token
    )
    assert idle_ttft_ms(profile("h100/llama-8b"), 8_000, 2_000) == pytest.approx(once + 3 * step.a_ms)


def test_work_grows_with_prompts_and_answers() -> None:
    llama = profile("h100/llama-8b")
    short, longer, talkative = (
        work_ms(TraceRequest(0, prompt, output), llama, llama) for prompt, output in ((100, 10), (200, 10), (100, 20))
    )
    assert short < longer
    assert short < talkative
