"""Sizes and splits in words, from findings that are made up."""

from __future__ import annotations

from dataclasses import replace

from pointsman.app.advice import figures
from pointsman.app.advice.choice import compared
from pointsman.app.advice.findings import SPLIT, Findings
from pointsman.app.advice.fleet_words import Apart, apart, gpus, stages
from pointsman.app.advice.limits import LOADS, Limit
from support.made_findings import made_findings


def _load(*values: float) -> Limit:
    return Limit(dict(enumerate(values)), LOADS[-1], LOADS[0])


def _split(together: Limit, split: Limit, goodput: tuple[float, float]) -> Findings:
    findings = made_findings()
    findings.loads = {"round_robin": together, SPLIT: split}
    findings.split = replace(findings.together, name="1:2")
    names = (findings.together.name, "1:2")
    runs = findings.policies["round_robin"]
    findings.split_runs = {
        name: {seed: {**runs[seed], "itl_p99_ms": 30.0, "goodput_share": share} for seed in runs}
        for name, share in zip(names, goodput, strict=True)
    }
    findings.split_comparisons = compared(findings.split_runs)
    return findings


def test_a_split_that_takes_less_load_is_not_better_for_a_few_more_in_time() -> None:
    less, more = _load(0.184, 0.17, 0.184, 0.184, 0.184), _load(*[0.5] * 5)
    assert apart(_split(more, less, (0.0, 0.05))) is Apart.NO
    assert apart(_split(more, more, (0.0, 0.05))) is Apart.YES
    assert apart(_split(less, more, (0.0, 0.05))) is Apart.YES
    assert apart(_split(less, more, (0.99, 0.95))) is Apart.NO


def test_a_split_that_seems_to_take_more_is_not_said_to_take_no_more() -> None:
    findings = _split(_load(1.36, 1.59), _load(8.0, 8.0), (1.0, 1.0))
    assert apart(findings) is Apart.TIE
    said = " ".join(stages(findings))
    assert said.startswith(
        "No reason that is sure. The best split is 1:2 (prefill:decode); that it takes more load than 3 wo"
    )
    assert "no better and no worse" not in said


def test_no_fleet_of_one_policy_is_not_no_fleet_at_all() -> None:
    findings = made_findings()
    nothing = Limit(dict.fromkeys(range(5)), 1.0, 16.0)
    findings.sizes = {"round_robin": nothing, "cost": Limit({0: 14.0, 1: 15.0, 2: 16.0, 3: None, 4: None}, 1.0, 16.0)}
    assert gpus(findings)[1] == "No fleet of up to 16 workers keeps it with round_robin; with cost 16 workers."
    findings.sizes = {"round_robin": nothing, "cost": nothing}
    assert gpus(findings)[1] == "No fleet of up to 16 workers keeps it."


def test_where_no_number_is_enough_nobody_is_sent_for_more() -> None:
    findings = made_findings(loads={"round_robin": (0.5,) * 5})
    again = "ask again with as many GPUs as are needed"
    assert again in " ".join(gpus(findings))
    findings.traffic = replace(findings.traffic, hopeless_share=1.0)
    said = " ".join(gpus(findings))
    assert "No number of these workers keeps this SLO" in said
    assert again not in said


def test_a_load_beyond_what_was_tried_is_so_in_its_range_as_well() -> None:
    assert figures.load(_load(7.41, 8.0, 8.0)) == "more than ×8 (×7.41 to more by seed)"
    assert figures.load(_load(7.41, 7.41, 8.0)) == "×7.41 (×7.41 to more than ×8 by seed)"
    assert figures.load(_load(1.0, 1.08, 1.08)) == "×1.08 (×1 to ×1.08 by seed)"
    assert figures.load(_load(8.0, 8.0)) == "more than ×8"
