"""Traffic that is hardly any: an answer comes nevertheless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.app.advice.advise import advice
from pointsman.app.advice.consult import consult
from pointsman.app.advice.excerpt import busiest
from pointsman.app.advice.idle import works_ms
from pointsman.app.cli.advise import text
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace
from support.known_traffic import question, traffic

AT_ONCE = traffic(12, 0)
ONE_TOKEN = traffic(10, 100, output_tokens=1)


@pytest.mark.parametrize(
    ("trace", "profile_name"),
    [
        (traffic(1, 0), "h100/llama-8b"),
        (AT_ONCE, "h100/llama-8b"),
        (ONE_TOKEN, "h100/llama-8b"),
        (traffic(10, 100), "instant"),
    ],
)
def test_it_is_answered(trace: Trace, profile_name: str) -> None:
    answer = advice(consult(question(trace, "2", profile=profile_name)))
    assert answer.worth in ("no", "some")
    assert answer.fleet.enough is not None
    said = text(answer)
    assert "too few for shares and P99s to mean much" in " ".join(said.split())
    assert "nan" not in said
    assert "inf" not in said.replace("infiniband", "")


def test_some_prompts_that_fit_nowhere_are_told() -> None:
    trace = traffic(12, 100)
    huge = replace(trace.requests[5], prompt_tokens=600_000, block_ids=())
    requests = (*trace.requests[:5], huge, *trace.requests[6:])
    answer = advice(consult(question(replace(trace, requests=requests), "1")))
    assert any(each.startswith("1 of 12 prompts leave no room for an answer in") for each in answer.unknown)


def test_a_stretch_of_requests_that_come_at_once() -> None:
    llama = profile("h100/llama-8b")
    excerpt = busiest(AT_ONCE, works_ms(AT_ONCE, llama, llama), most_cost=5)
    assert 0 < len(excerpt.trace) <= 5


def test_two_seeds_that_can_not_tell_do_not_say_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.app.advice.worth.reasons", lambda findings: [])
    findings = consult(question(traffic(120, 24, groups=16), "3", seeds=2))
    assert not any(each.significant for each in findings.comparisons if each.key == "goodput_share")
    answer = advice(findings)
    assert answer.worth == "unknown"
    assert answer.headline.startswith("2 seeds can't tell. More requests kept the SLO with ")
    assert answer.headline.endswith("ask again with --seeds 5 or more.")
    assert answer.policy is None
    assert all(section.title != "Policy" for section in answer.sections)
