"""Which policy to take, in words, from measures that are made up."""

from __future__ import annotations

from pointsman.app.advice.advise import advice
from pointsman.app.advice.caveats import assumed
from pointsman.app.advice.choice import compared
from pointsman.app.advice.findings import AWARE, DEFAULT, PLAIN
from pointsman.app.advice.limits import LOADS, Limit
from pointsman.app.advice.policy_words import policy
from pointsman.app.advice.worth import Worth, worth
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


def test_one_that_only_some_are_behind_is_not_better_than_all_of_them() -> None:
    assert headline(made_findings({"cost": DOUBLE})) == (
        "No. Any load balancer (round_robin) does as well here as the best policies that know what is cached, and "
        "better than others of them."
    )


def test_one_that_surely_pays_is_taken_where_the_default_does_not() -> None:
    """cost is between the two, noticeably apart from neither."""
    findings = made_findings(
        {"cost": {"ttft_p99_ms": 0.93}, "prefix": {"ttft_p99_ms": 0.95}, "kv": {"ttft_p99_ms": 0.86}}
    )
    assert worth(findings) is Worth.SOME
    assert headline(findings).startswith("A little. It does not save the SLO; but kv is faster than round_robin: ")
    first, *_ = policy(findings)
    assert first.startswith("Take kv (routing.policy: kv), which is better than round_robin (P99 TTFT 1")
    assert first.endswith("); of the default, cost, that is not sure.")


def test_loads_that_seem_far_apart_under_few_seeds_are_not_called_alike() -> None:
    loads = {"round_robin": (1.36, 1.59), "cost": (8.0, 8.0)}
    findings = made_findings(loads=loads, seeds=2)
    assert worth(findings) is Worth.UNKNOWN
    assert headline(findings) == (
        "2 seeds can't tell. With cost 3 workers took more than ×8 of this load, with round_robin ×1.36 (×1.36 to "
        "×1.59 by seed), but that may be chance: ask again with --seeds 5 or more."
    )
    assert policy(findings) == []
    # With much room nothing depends on it.
    assert worth(made_findings(loads={"round_robin": (3.43, 3.7), "cost": (8.0, 8.0)}, seeds=2)) is Worth.NO


def test_sizes_that_seem_apart_under_few_seeds_are_not_called_alike() -> None:
    findings = made_findings(seeds=2)
    findings.sizes = {
        "round_robin": Limit({0: 4.0, 1: 5.0}, 1.0, 16.0),
        "cost": Limit({0: 4.0, 1: 3.0}, 1.0, 16.0),
    }
    assert headline(findings).startswith(
        "2 seeds can't tell. With cost this load needed 4 workers (3 to 4 by seed), wi"
    )


def test_requests_that_seem_to_gain_by_another_than_the_default_are_told() -> None:
    findings = made_findings({"kv": {"goodput_share": 0.93}}, seeds=2)
    for seed, share in enumerate((0.9, 0.96)):
        findings.policies["kv"][seed]["goodput_share"] = share  # type: ignore[index]
    findings.comparisons, findings.aware = compared(findings.policies), DEFAULT
    assert headline(findings).startswith(
        "2 seeds can't tell. More requests kept the SLO with kv than with round_robin,"
    )


def test_a_plain_one_that_does_better_at_this_load_is_told_beside_the_load_that_speaks_against_it() -> None:
    findings = made_findings(
        {
            "cost": {"goodput_share": 0.96},
            "round_robin": {"goodput_share": 0.99},
            "least_loaded": {"goodput_share": 0.99},
        },
        {"round_robin": (1.26,) * 5, "cost": (2.0, 1.85, 2.0, 2.0, 2.0)},
        names=(*PLAIN, DEFAULT),
    )
    assert headline(findings) == (
        "Yes. With cost 3 workers can take ×2 (×1.85 to ×2 by seed) of this load, with round_robin ×1.26. At this load "
        "on 3 workers round_robin does better, though: goodput 3.0 points ± 0.0 higher."
    )
    assert policy(findings)[0].endswith("and no other that knows what is cached is noticeably better.")


def test_the_slo_is_not_lost_where_the_one_that_is_taken_keeps_it() -> None:
    measures = {name: {"ttft_p99_ms": 0.5, "goodput_share": 0.952} for name in AWARE}
    measures |= {name: {"goodput_share": 0.948} for name in PLAIN}
    said = headline(made_findings(measures))
    assert said.startswith(
        "A little. Hardly more requests keep the SLO than with any load balancer (round_robin); but "
    )


def test_a_load_that_is_less_than_any_that_was_tried_does_not_read_as_at_least() -> None:
    findings = made_findings(loads={"cost": (1.0,) * 5})
    findings.loads["kv"] = Limit(dict(enumerate((2.0, 1.85, 2.0, 2.0, 2.0))), LOADS[-1], LOADS[0])
    findings.loads["cost"] = Limit(dict.fromkeys(range(5)), LOADS[-1], LOADS[0])
    findings.loads["round_robin"] = findings.loads["cost"]
    findings.aware = "kv"
    assert "(×2 of this load, with cost less than ×0.125)" in policy(findings)[0]


def test_nobody_is_told_to_set_what_is_worse_than_what_is_advised_without_a_layer() -> None:
    """least_loaded beats taking turns by goodput alone, and that the default by latency alone."""
    measures = {name: {"ttft_p99_ms": 2.0, "goodput_share": 0.905} for name in AWARE}
    measures["least_loaded"] = {"ttft_p99_ms": 2.0, "goodput_share": 0.911}
    take, in_a_layer = policy(made_findings(measures))
    assert take.startswith("Take least_loaded")
    assert in_a_layer == "Where pointsman runs, nothing has to be set: its default, cost, is not noticeably worse."


def test_before_loads_are_known_no_policy_is_advised() -> None:
    measures = {name: {"goodput_share": 0.99} for name in AWARE}
    findings = made_findings(measures)
    findings.interrupted = True
    assert headline(findings).startswith("Not known yet")
    answer = advice(findings)
    assert (answer.policy, answer.layer_policy, answer.fleet.enough, answer.fleet.goodput_share) == (None,) * 4
    assert worth(made_findings(measures)) is Worth.YES


def test_the_default_is_preferred_only_to_what_was_compared() -> None:
    preferred = "cost, the default, is preferred to others that know what is cached"
    assert any(preferred in each for each in assumed(made_findings()))
    alone = made_findings(trace=without_blocks(traffic(20, 100)), names=(*PLAIN, DEFAULT))
    assert not any(preferred in each for each in assumed(alone))


def test_one_of_a_kind_is_singular() -> None:
    assert "1 request, 0 a second" in " ".join(assumed(made_findings(trace=traffic(1, 100))))
