"""Which policy to take, in words, from measures that are made up."""

from __future__ import annotations

from pointsman.app.advice.findings import AWARE, DEFAULT, PLAIN
from pointsman.app.advice.policy_words import policy
from pointsman.app.advice.worth_words import coordination, headline
from support.known_traffic import traffic, without_blocks
from support.made_findings import Factors, made_findings

HALF: Factors = {"ttft_p99_ms": 0.5}
DOUBLE: Factors = {"ttft_p99_ms": 2.0}
KNOWING = dict.fromkeys(AWARE, HALF)


def _said(*args: object, **more: object) -> str:
    return " ".join(policy(made_findings(*args, **more)))  # type: ignore[arg-type]


def test_alike_nothing_has_to_be_set() -> None:
    assert _said() == (
        "Take the simplest, round_robin or any load balancer: no other is noticeably better. Where pointsman runs, "
        "nothing has to be set: its default, cost, is not noticeably worse."
    )


def test_the_default_is_taken_where_those_that_know_caches_are_alike() -> None:
    assert _said(KNOWING) == (
        "Take cost, the default: nothing has to be set, and no other is noticeably better. It was simulated with "
        "engines that send KV events (vLLM and SGLang do); prefix does without them and is not noticeably worse."
    )


def test_what_engines_without_events_would_lose_is_told() -> None:
    said = _said({"cost": HALF, "kv": HALF})
    assert "prefix does without them, but cost is better (P99 TTFT 49.9 % ± " in said


def test_another_one_that_is_surely_better_is_to_be_set() -> None:
    said = _said({**KNOWING, "kv": {"ttft_p99_ms": 0.25}})
    assert said.startswith("Take kv (routing.policy: kv), which is better than the default, cost (P99 TTFT 50.1 % ± ")
    assert "It needs engines that send KV events (vLLM and SGLang do); prefix does without them, but kv is" in said
    said = _said({"prefix": {"ttft_p99_ms": 0.25}, "kv": {"ttft_p99_ms": 0.25}, "cost": HALF})
    assert said.startswith("Take prefix (routing.policy: prefix), which is better than the default, cost (")
    assert said.endswith("kv, which hears from the engines what they hold, is not noticeably better here.")


def test_one_that_takes_more_load_says_how_much() -> None:
    loads = {"round_robin": (0.5,) * 5, "cost": (1.0,) * 5, "prefix": (1.0,) * 5, "kv": (2.0, 1.85, 2.0, 2.0, 2.0)}
    said = _said(loads=loads)
    assert said.startswith(
        "Take kv (routing.policy: kv), which is better than the default, cost (×2 of this load, not ×1)."
    )
    assert said.endswith("prefix does without them, but kv is better (×2 of this load, not ×1).")


def test_a_default_that_is_worse_than_any_balancer_is_to_be_replaced() -> None:
    findings = made_findings(dict.fromkeys(AWARE, DOUBLE))
    assert headline(findings) == (
        "No. Any load balancer (round_robin) does better here than policies that know what is cached."
    )
    assert " ".join(policy(findings)).endswith(" lower).")
    assert policy(findings)[1].startswith(
        "Where pointsman runs, set round_robin (routing.policy: round_robin), which is better than the default, cost ("
    )


def test_load_alone_may_be_a_reason_and_is_called_that() -> None:
    trace = without_blocks(traffic(20, 100))
    names = (*PLAIN, DEFAULT)
    findings = made_findings({"cost": HALF}, trace=trace, names=names)
    assert headline(findings).endswith("That is by load alone: what prompts have in common this trace does not say.")
    assert policy(findings) == ["Take cost, the default: nothing has to be set, and no other is noticeably better."]
    assert headline(made_findings(trace=trace, names=names)).startswith("This trace can't tell.")


def test_the_one_that_is_taken_is_measured_against_the_plain_one_where_another_leads() -> None:
    first, *_ = coordination(made_findings({**KNOWING, "kv": {"ttft_p99_ms": 0.47}}))
    assert first.startswith("cost against round_robin: P99 TTFT 50 % ± ")
    first, *_ = coordination(made_findings(KNOWING | {"cost": {"ttft_p99_ms": 0.47}}))
    assert first.startswith("cost beats ")
