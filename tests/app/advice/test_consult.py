"""Advice on traffic whose right answer is known."""

from __future__ import annotations

from typing import Any

import pytest

from pointsman.app.advice import laboratory
from pointsman.app.advice.advise import advice
from pointsman.app.advice.consult import consult
from pointsman.app.advice.document import Advice
from pointsman.app.advice.fleets import of_size
from pointsman.app.advice.laboratory import Case, Laboratory
from pointsman.app.advice.worth import Worth, worth
from pointsman.app.cli.advise import text
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace
from support.known_traffic import Consult, question, traffic, without_blocks

UNLIKE = traffic(60, 100)
SHARED = traffic(120, 24, groups=16)
LIGHT = traffic(40, 2_000, groups=8)
OVERLOADED = traffic(60, 25)
UNLIKE_SPEED = traffic(60, 100, output_tokens=40)
TWO_KINDS = "prefill=h100/llama-8b,decode=a100/llama-8b"
NO_BLOCKS = without_blocks(traffic(60, 200))


def _section(answer: Advice, title: str) -> str:
    return " ".join(next(each.sentences for each in answer.sections if each.title == title))


def test_no_reuse_says_no(consulted: Consult) -> None:
    answer = advice(consulted(UNLIKE, "3"))
    assert answer.worth == "no"
    assert answer.policy == "round_robin"
    assert answer.headline.startswith("No. Prompts have next to nothing in common")
    assert _section(answer, "Policy") == (
        "Take the simplest, round_robin or any load balancer: no other is noticeably better. Where pointsman runs, "
        "nothing has to be set: its default, cost, is not noticeably worse."
    )
    assert answer.layer_policy == "cost"
    assert answer.cache is not None
    assert answer.cache.reusable_share == 0
    assert "no memory is needed to keep it" in _section(answer, "KV memory")


def test_one_worker_says_no_and_simulates_no_other_policy(consulted: Consult) -> None:
    findings = consulted(LIGHT, "1")
    answer = advice(findings)
    assert answer.worth == "no"
    assert answer.headline == (
        "No. With one worker there is nothing to choose between: a coordination layer makes nothing faster."
    )
    assert list(findings.policies) == ["round_robin"]
    assert _section(answer, "Policy") == "Any, so the default (cost) as well: with one worker all policies do the same."
    assert answer.layer_policy == "cost"
    assert set(answer.fleet.workers_needed) == {"round_robin", "cost"}
    assert answer.split is None
    assert answer.fleet.enough


def test_one_worker_that_is_too_few_hears_so() -> None:
    answer = advice(consult(question(traffic(60, 100, groups=8), "1", slo="ttft=150ms")))
    assert answer.worth == "no"
    assert "this load needs more than one worker" in answer.headline
    assert not answer.fleet.enough
    needed = answer.fleet.workers_needed["round_robin"].value
    assert needed is not None
    assert needed > 1


def test_prompts_that_share_much_on_a_busy_fleet_say_yes(consulted: Consult) -> None:
    answer = advice(consulted(SHARED, "3"))
    assert answer.worth == "yes"
    assert answer.policy == answer.layer_policy == "cost"
    assert answer.headline.startswith("Yes. With cost ")
    assert _section(answer, "Policy").startswith("Take cost, the default: nothing has to be set")
    assert any(each.startswith("For cost and kv the engines tell which KV blocks") for each in answer.assumed)
    assert any(each.startswith("cost, the default, is preferred to others") for each in answer.assumed)
    assert answer.comparison is not None
    compared = [each.policy for each in answer.comparison.points[0].policies]
    assert compared == ["round_robin", "least_loaded", "cost", "prefix", "kv"]
    assert set(answer.fleet.load) == {"round_robin", "cost", "prefix", "kv"}
    assert set(answer.fleet.workers_needed) == {"round_robin", "cost"}
    assert answer.cache is not None
    assert answer.cache.found_share[answer.policy] > answer.cache.found_share["round_robin"] + 0.1
    ours, theirs = (answer.fleet.load[name].value for name in (answer.policy, "round_robin"))
    assert ours is not None
    assert theirs is not None
    assert ours > 1.2 * theirs
    fewer, more = (answer.fleet.workers_needed[name].value for name in (answer.policy, "round_robin"))
    assert fewer is not None
    assert more is not None
    assert fewer < more


def test_light_load_says_that_anything_will_do(consulted: Consult) -> None:
    answer = advice(consulted(LIGHT, "3"))
    assert answer.worth == "no"
    assert answer.headline.startswith("No. Any load balancer (round_robin) does as well here")
    assert answer.fleet.load["round_robin"].beyond
    assert answer.fleet.workers_needed["round_robin"].value == 1
    assert "far larger than this load needs" in _section(answer, "GPUs")


def test_an_overloaded_fleet_hears_how_many_workers_are_needed(consulted: Consult) -> None:
    answer = advice(consulted(OVERLOADED, "2"))
    assert answer.fleet.enough is False
    needed = answer.fleet.workers_needed["round_robin"].value
    assert needed is not None
    assert needed > 3
    said = _section(answer, "GPUs")
    assert "2 workers (2 GPUs) are too few" in said
    assert f"{needed:g} workers" in said
    assert "compared on this overloaded fleet" in said
    # The answer holds: with that many workers it is enough under most seeds, with one less it isn't.
    with Laboratory(question(OVERLOADED, "2"), OVERLOADED, 1) as lab:
        cases = [Case("round_robin", of_size(profile("h100/llama-8b"), round(needed) - less)) for less in (0, 1)]
        lab.measure((case, seed) for case in cases for seed in range(3))
        held = [sum(runs["goodput_share"] >= 0.95 for runs in lab.by_seed(case).values()) for case in cases]
    assert held[0] >= 2 > held[1]


def test_an_slo_that_an_idle_worker_misses_is_called_hopeless(consulted: Consult) -> None:
    answer = advice(consulted(LIGHT, "2", slo="ttft=20ms"))
    assert answer.fleet.hopeless_share == 1
    assert "No number of these workers keeps this SLO" in _section(answer, "GPUs")
    assert answer.fleet.workers_needed["round_robin"].value is None


def test_without_block_ids_reuse_is_unknown_not_absent(consulted: Consult) -> None:
    findings = consulted(NO_BLOCKS, "2")
    answer = advice(findings)
    assert answer.worth == "unknown"
    assert answer.headline.startswith("This trace can't tell.")
    # The default reckons with loads, the other ones that know caches have nothing to go by.
    assert set(findings.policies) == {"round_robin", "least_loaded", "cost"}
    assert set(answer.fleet.load) == {"round_robin", "cost"}
    assert answer.layer_policy == "cost"
    assert not any("KV blocks they hold" in each for each in answer.assumed)
    assert answer.cache is None
    assert "the trace does not say" in _section(answer, "KV memory")


def test_a_split_is_compared_with_the_same_workers_together(consulted: Consult) -> None:
    findings = consulted(UNLIKE, "3")
    answer = advice(findings)
    assert answer.split is not None
    assert answer.split.best_ratio in ("1:2", "2:1")
    assert set(findings.split_runs) == {"3 workers", answer.split.best_ratio}
    # Prompts of 6,656 tokens and answers of 10: workers that only decode stand idle.
    assert answer.split.apart == "no"
    said = _section(answer, "Prefill and decode apart")
    assert "for both stages do better" in said
    # Workers that are not busy compute faster than links move.
    assert answer.split.by_request == "tie"
    assert "Decided by request (cost, kv_transfer: auto)" in said
    assert f"On {answer.split.best_ratio} it has" in said


def test_answers_that_stall_behind_long_prompts_are_better_apart() -> None:
    trace = traffic(30, 300, output_tokens=150, shared_blocks=40)
    answer = advice(consult(question(trace, "4", slo="ttft=8s,tpot=9ms")))
    assert answer.split is not None
    assert answer.split.apart == "yes"
    said = _section(answer, "Prefill and decode apart")
    assert said.startswith(f"Yes, {answer.split.best_ratio} (prefill:decode)")
    assert "goodput" in said
    assert answer.split.by_request in ("yes", "tie")
    assert answer.split.moved_share is not None


def test_workers_of_unlike_speed_are_best_with_the_default(consulted: Consult) -> None:
    """Only predicted times tell that a worker which has as little to do as the others is slower."""
    answer = advice(consulted(UNLIKE_SPEED, "2:2", profile=TWO_KINDS))
    assert answer.worth == "yes"
    assert answer.policy == answer.layer_policy == "cost"
    ours, prefix, plain = (answer.fleet.load[name].value for name in ("cost", "prefix", "round_robin"))
    assert ours is not None
    assert prefix is not None
    assert plain is not None
    assert ours > 1.2 * max(prefix, plain)
    assert "prefix does without them, but cost is better (×" in _section(answer, "Policy")
    assert answer.split is not None
    assert "On 2:2 it decides by request, too: " in _section(answer, "Prefill and decode apart")


def test_two_kinds_of_gpus(consulted: Consult) -> None:
    answer = advice(consulted(traffic(24, 200), "1:1", profile=TWO_KINDS))
    assert answer.fleet.fleet == "1 + 1 worker"
    assert answer.split is not None
    assert answer.split.best_ratio == "1:1"
    assert answer.fleet.workers_needed == {}
    assert "Scaled from that, not simulated" in _section(answer, "GPUs")


def test_of_two_kinds_that_may_be_bought_the_better_one_is_taken(consulted: Consult) -> None:
    answer = advice(consulted(traffic(24, 200), "2", profile=TWO_KINDS))
    assert answer.fleet.fleet == "2 workers of h100/llama-8b"


def test_the_same_question_has_the_same_answer() -> None:
    trace = traffic(20, 200, groups=4)
    assert advice(consult(question(trace, "2"))) == advice(consult(question(trace, "2")))


def test_a_long_trace_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.app.advice.excerpt.busiest.__defaults__", (30.0, None, 0.0))
    trace = traffic(60, 200)
    cut = advice(consult(question(trace, "1")))
    assert cut.simulated_requests < 40 < cut.requests
    assert any("Simulated was its busiest stretch" in each for each in cut.assumed)
    whole = advice(consult(question(trace, "1", thorough=True)))
    assert whole.simulated_requests == 60


@pytest.mark.parametrize("after", [0, 5, 30, 85])
def test_interrupted_it_tells_what_is_known(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    results = laboratory.Runner.results
    left = [after]

    def interrupted(self: Any, runs: Any, on_progress: Any = None) -> Any:
        for result in results(self, runs, on_progress):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            yield result

    monkeypatch.setattr(laboratory.Runner, "results", interrupted)
    findings = consult(question(UNLIKE, "3"))
    answer = advice(findings)
    assert findings.interrupted
    assert answer.interrupted
    # 15 runs of policies, then loads: that nothing was found by then says nothing.
    assert worth(findings) is (Worth.NO if after == 85 else Worth.UNKNOWN)
    assert answer.policy == ("round_robin" if after == 85 else None)
    assert any(section.title == "Policy" for section in answer.sections) == (after == 85)
    assert any(section.title == "GPUs" for section in answer.sections) == (after == 85)
    assert (answer.comparison is None) == (after == 0)
    assert answer.layer_policy == ("cost" if after == 85 else None)
    assert any("interrupted" in each for each in answer.unknown)
    assert text(answer)


def test_nothing_is_simulated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is compared with the others, decides by request, on the split as well, and needs sizes: once each."""
    results = laboratory.Runner.results
    made: list[object] = []

    def noted(self: Any, runs: Any, on_progress: Any = None) -> Any:
        for run, point in runs:
            made.append((run.entry, run.seed, point.rate, point.setup.groups, point.setup.kv_transfer))
        return results(self, runs, on_progress)

    monkeypatch.setattr(laboratory.Runner, "results", noted)
    expected: list[int] = []
    consult(question(traffic(20, 60, groups=4), "2"), on_progress=lambda progress: expected.append(progress.runs))
    assert len(set(made)) == len(made)
    assert expected[0] * 0.6 < len(made) < expected[0] * 1.4


def test_progress_is_told_from_nothing_to_nearly_all() -> None:
    shares: list[float] = []
    trace: Trace = traffic(20, 200)
    consult(question(trace, "2"), on_progress=lambda progress: shares.append(round(progress.share, 6)))
    assert shares[0] == 0
    assert max(shares) <= 1
    assert shares[-1] > 0.5


def test_progress_is_not_at_its_end_while_one_of_two_kinds_is_chosen() -> None:
    expected: list[int] = []
    asked = question(traffic(10, 200), "2", profile="prefill=h100/llama-8b,decode=a100/llama-8b", seeds=2)
    consult(asked, on_progress=lambda progress: expected.append(progress.runs))
    assert expected[0] > expected[-1] / 2
