"""Experiments as a whole: all runs are made, the knee is looked for, Ctrl-C keeps what is done."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import replace

import msgspec
import pytest

from pointsman.app.experiments import runner
from pointsman.app.experiments.conduct import Progress, Results, conduct
from pointsman.app.experiments.csv_rows import HEADER, csv_rows
from pointsman.app.experiments.detail import detail_point
from pointsman.app.experiments.document import Summary
from pointsman.app.experiments.fleet import Size, groups, parse_profiles
from pointsman.app.experiments.plan import Experiment, Point, entries
from pointsman.app.experiments.slo import Slo
from pointsman.app.experiments.summary import summarize
from pointsman.app.experiments.sweep import Base, Sweep, parse_sweep
from pointsman.app.experiments.workload import Recorded
from pointsman.app.simulate.setup import Setup
from pointsman.core.model.errors import ConfigError, PolicyError
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

Calls = list[tuple[str, int, int]]


def experiment(
    trace: Trace, points: tuple[Point, ...], *names: str, seeds: int = 5, slo: Slo | None = None
) -> Experiment:
    registry = PolicyRegistry()
    return Experiment(Recorded(trace), entries(registry.get(name) for name in names), points, seeds, slo)


def sweep_of(text: str, setup: Setup) -> Sweep:
    profiles = parse_profiles("h100/llama-8b", profile)
    at = Point(setup)
    return parse_sweep(
        text,
        Base(at, Size(both=4), lambda size: replace(at, setup=replace(setup, groups=groups(profiles, size))), 10.0),
    )


def test_labels() -> None:
    registry = PolicyRegistry()
    found = entries(registry.get(name) for name in ("random", "kv", "random", "random"))
    assert [entry.label for entry in found] == ["random", "kv", "random 2", "random 3"]


@pytest.mark.usefixtures("fake_simulate")
def test_the_verdict(trace: Trace, setup: Setup) -> None:
    results = conduct(experiment(trace, (Point(setup),), "kv", "round_robin", "random", slo=Slo(ttft_ms=600)))
    summary = summarize(results)
    (point,) = summary.points
    assert point.leader == "kv"
    against_random, against_turns = sorted(point.verdict, key=lambda sentence: "round_robin" in sentence)
    assert against_random.startswith("No significant difference between kv and random")
    assert against_turns.startswith("kv beats round_robin by 49 % ± 2 on P99 TTFT and 49 % ± 3 on P50 TTFT; no signif")
    assert summary.missing == []
    assert [run.seed for run in point.policies[0].runs] == [0, 1, 2, 3, 4]


def test_every_policy_meets_the_same_seeds(trace: Trace, setup: Setup, fake_simulate: Calls) -> None:
    conduct(experiment(trace, (Point(setup),), "kv", "random", seeds=3))
    assert fake_simulate == [(name, seed, 4) for seed in range(3) for name in ("kv", "random")]


@pytest.mark.usefixtures("fake_simulate")
def test_the_order_of_policies_changes_no_number(trace: Trace, setup: Setup) -> None:
    one = conduct(experiment(trace, (Point(setup),), "kv", "random", seeds=2))
    other = conduct(experiment(trace, (Point(setup),), "random", "kv", seeds=2))
    for label in ("kv", "random"):
        assert msgspec.json.encode(one.metrics(0)[label]) == msgspec.json.encode(other.metrics(0)[label])


@pytest.mark.usefixtures("fake_simulate")
def test_progress(trace: Trace, setup: Setup) -> None:
    told: list[Progress] = []
    conduct(experiment(trace, (Point(setup),), "kv", "random", seeds=2), on_progress=told.append)
    shares = [progress.share for progress in told]
    assert shares == sorted(shares)
    assert (told[0].done, told[0].share) == (0, 0.0)
    assert (told[1].done, told[1].share) == (0, 0.125)
    assert (told[-1].done, told[-1].runs, told[-1].share) == (4, 4, 1.0)


def test_a_sweep_looks_closer_at_the_knee(trace: Trace, setup: Setup, fake_simulate: Calls) -> None:
    """TTFT is 400 ms · 4 / workers, twice that for round_robin, times luck; the limit is 450 ms."""
    sweep = sweep_of("workers=2,8,32", setup)
    plan = experiment(trace, sweep.points(), "kv", "round_robin", seeds=2, slo=Slo(ttft_ms=700))
    results = conduct(plan, sweep=sweep, bisections=2, target=0.9)
    values = [point.value for point in results.experiment.points]
    assert values == sorted(values)
    assert len(values) > 3
    knees = results.knees(0.9)
    kv, turns = knees["kv"], knees["round_robin"]
    assert kv.value is not None
    assert turns.value is not None
    assert kv.value < turns.value
    assert kv.value - (kv.beyond or 0) <= 3
    assert len(fake_simulate) == len(values) * 4
    summary = summarize(results, 0.9)
    assert summary.sweep is not None
    assert [entry.policy for entry in summary.sweep.knees] == ["kv", "round_robin"]
    assert summary.sweep.knees[0].text.startswith(f"kv needs {kv.value:g} workers for 90 % of requests")
    assert summary.points[detail_point(summary)].value == kv.value
    for each in results.results:
        assert each.metrics["ttft_p50_ms"] > 0
        assert (
            results.experiment.points[each.run.point].name
            == f"workers={results.experiment.points[each.run.point].value:g}"
        )


@pytest.mark.usefixtures("fake_simulate")
def test_without_an_slo_there_is_no_knee(trace: Trace, setup: Setup) -> None:
    sweep = sweep_of("rate=1,2", setup)
    results = conduct(experiment(trace, sweep.points(), "kv", seeds=1), sweep=sweep, bisections=3)
    assert results.knees() == {}
    assert len(results.experiment.points) == 2
    summary = summarize(results)
    assert summary.sweep is not None
    assert summary.sweep.knees == []


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C comes in the run after so many."""
    usual, calls = runner.simulate, [0]

    def simulate(*arguments: object, **more: object) -> object:
        calls[0] += 1
        if calls[0] > after:
            raise KeyboardInterrupt
        return usual(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "simulate", simulate)


@pytest.mark.usefixtures("fake_simulate")
def test_an_interrupt_keeps_what_is_done(trace: Trace, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, after=5)
    results = conduct(experiment(trace, (Point(setup),), "kv", "random", seeds=4))
    assert results.interrupted
    assert len(results.results) == 5
    summary = summarize(results)
    assert summary.missing == ["kv: seed 3", "random: seeds 2, 3"]
    assert [len(policy.runs) for policy in summary.points[0].policies] == [3, 2]
    assert summary.points[0].verdict


@pytest.mark.usefixtures("fake_simulate")
def test_an_interrupt_before_anything_is_done(trace: Trace, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, after=0)
    summary = summarize(conduct(experiment(trace, (Point(setup),), "kv", "random", seeds=2)))
    assert summary.missing == ["kv: all 2 seeds", "random: all 2 seeds"]
    assert summary.points[0].policies == []
    assert summary.points[0].leader is None


@pytest.mark.usefixtures("fake_simulate")
def test_documents(trace: Trace, setup: Setup) -> None:
    results = conduct(experiment(trace, (Point(setup),), "kv", "random", seeds=2))
    summary = summarize(results, notes=["beware"])
    text = msgspec.json.encode(summary)
    assert msgspec.json.decode(text, type=Summary) == summary
    assert b"NaN" not in text
    assert summary.points[0].policies[0].metrics["goodput_share"] is None
    rows = list(csv_rows(summary))
    assert len(rows) == 4
    assert all(len(row) == len(HEADER) for row in rows)
    assert dict(zip(HEADER, rows[0], strict=True))["goodput_share"] == ""


def test_a_policy_that_breaks_is_named(trace: Trace, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(*arguments: object, **more: object) -> object:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(runner, "simulate", simulate)
    with pytest.raises(PolicyError, match=r"policy 'kv', seed 0: the simulation failed: ZeroDivisionError\('oh'\)"):
        conduct(experiment(trace, (Point(setup),), "kv"))


@pytest.fixture
def small() -> Trace:
    return Trace("small", [TraceRequest(20.0 * number, 200, 8, tuple(range(12))) for number in range(60)], 16)


def test_several_processes_give_the_same_numbers(small: Trace, setup: Setup) -> None:
    plan = experiment(small, (Point(replace(setup, step_noise=0.05)),), "kv", "random", "random", seeds=2)
    here, there = conduct(plan, jobs=1), conduct(plan, jobs=2)
    assert msgspec.json.encode(summarize(here)) == msgspec.json.encode(summarize(there))
    first, second = (
        [run.metrics["ttft_p50_ms"] for run in policy.runs] for policy in summarize(here).points[0].policies[1:]
    )
    assert first != second


class Forgetful:
    """A policy that remembers how often it decided, which a policy should not."""

    name = "forgetful"

    def __init__(self) -> None:
        self.decided = 0
        self._policy = PolicyRegistry().get("round_robin")

    def decide(self, *arguments: object) -> object:
        self.decided += 1
        return self._policy.decide(*arguments)  # type: ignore[arg-type]


def test_each_run_has_a_policy_of_its_own(small: Trace, setup: Setup) -> None:
    policy = Forgetful()
    plan = Experiment(Recorded(small), entries([policy]), (Point(setup),), 2)  # type: ignore[list-item]
    assert len(conduct(plan).results) == 2
    assert policy.decided == 0


def test_what_can_not_go_to_other_processes(small: Trace, setup: Setup) -> None:
    policy = Forgetful()
    policy.secret = lambda: None  # type: ignore[attr-defined]
    plan = Experiment(Recorded(small), entries([policy]), (Point(setup),), 2)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="run with --jobs 1"):
        conduct(plan, jobs=2)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_policy_that_can_not_be_copied_is_told(small: Trace, setup: Setup, jobs: int) -> None:
    policy = Forgetful()
    policy.lock = threading.Lock()  # type: ignore[attr-defined]
    plan = Experiment(Recorded(small), entries([policy]), (Point(setup),), 2)  # type: ignore[list-item]
    with pytest.raises(PolicyError, match="policy 'forgetful' can't be copied, and each run needs one of its own"):
        conduct(plan, jobs=jobs)


class Deadly:
    """A policy that takes its process along."""

    name = "deadly"

    def decide(self, *arguments: object) -> object:
        signal.raise_signal(signal.SIGKILL)
        raise AssertionError


def test_a_process_that_dies_is_told(small: Trace, setup: Setup) -> None:
    plan = Experiment(Recorded(small), entries([Deadly()]), (Point(setup),), 2)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="a process of the simulation died"):
        conduct(plan, jobs=2)


def test_what_was_done_before_a_process_died_is_kept(small: Trace, setup: Setup) -> None:
    registry = PolicyRegistry()
    policies = entries([registry.get("random"), registry.get("round_robin"), Deadly()])  # type: ignore[list-item]
    results = conduct(Experiment(Recorded(small), policies, (Point(setup),), 1), jobs=2)
    assert results.died.startswith("a process of the simulation died")
    assert not results.interrupted
    assert len(results.results) >= 1
    assert "deadly: its run" in summarize(results).missing


def test_processes_that_start_do_not_mind_ctrl_c() -> None:
    """They inherit that they do not hear of it; this one does when all have started."""
    ask = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    heard = []

    def start() -> None:
        with runner._ctrl_c_waits():
            signal.raise_signal(signal.SIGINT)
            heard.append(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert heard == ["True\n"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_results_name_their_missing_runs(trace: Trace, setup: Setup) -> None:
    results = Results(experiment(trace, (Point(setup, name="workers=4"),), "kv", seeds=1), (), None, True)
    assert summarize(results).missing == ["workers=4, kv: its run"]
