"""Consultation: the simulations that answer a question, in an order in which each tells the next where to look."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from pointsman.app.advice.choice import DECIDES_MOVING, compared, simplest
from pointsman.app.advice.excerpt import Excerpt, busiest, coarse_block_tokens
from pointsman.app.advice.findings import APART, AWARE, DEFAULT, MOVING, PLAIN, SPLIT, TOGETHER, Findings
from pointsman.app.advice.fleets import Fleet, of_size
from pointsman.app.advice.idle import works_ms
from pointsman.app.advice.laboratory import BY_REQUEST, Case, Laboratory
from pointsman.app.advice.limits import AS_IT_IS, LOADS, Limit, limits
from pointsman.app.advice.preference import best_aware
from pointsman.app.advice.question import Question
from pointsman.app.advice.settling import settling_ms
from pointsman.app.advice.split import best_split
from pointsman.app.advice.traffic import traffic
from pointsman.app.advice.worth import recommended
from pointsman.app.experiments.conduct import Progress
from pointsman.core.timing.profiles import Profile

_FEWEST_SIZES = 16
_MOST_SIZES = 256


def consult(question: Question, jobs: int = 1, on_progress: Callable[[Progress], None] | None = None) -> Findings:
    """Find out, in `jobs` processes. Ctrl-C ends it; what is known by then is in the findings."""
    question, excerpt = _shortened(question)
    together = question.fleets.together[0]
    findings = Findings(question, excerpt, together, traffic(question, excerpt, together))
    with Laboratory(question, excerpt.trace, jobs, on_progress) as laboratory:
        try:
            laboratory.expected = _expected(findings)  # With which fleet is not known yet, but about how many.
            _choose_fleet(laboratory, findings)
            laboratory.expected = _expected(findings)
            for stage in (_policies, _loads, _splits, _moving, _sizes):
                stage(laboratory, findings)
        except KeyboardInterrupt:
            findings.interrupted = True
            _judge_policies(laboratory, findings)
    return findings


def _shortened(question: Question) -> tuple[Question, Excerpt]:
    """What is simulated of the trace, and with which blocks."""
    trace, profiles = question.trace, question.profiles
    if question.thorough:
        return question, Excerpt(trace, 0, len(trace), 1.0)
    if question.setup.block_tokens is None:
        question = replace(question, setup=replace(question.setup, block_tokens=coarse_block_tokens(trace)))
    work = works_ms(trace, profiles.prefill, profiles.decode)
    return question, busiest(trace, work, block_tokens=question.setup.block_tokens, lasting_ms=settling_ms(question))


def _tried(findings: Findings) -> tuple[str, ...]:
    if findings.together.workers == 1:
        return PLAIN[:1]
    # Where nobody knows what prompts share the default still reckons with loads; the others have nothing to go by.
    return (*PLAIN, DEFAULT) if findings.traffic.caches is None else (*PLAIN, *AWARE)


def _expected(findings: Findings) -> int:
    """About so many runs."""
    question, tried = findings.question, _tried(findings)
    seeds, splits = question.seeds, bool(question.fleets.split)
    searches = 1 + len([name for name in tried if name in AWARE]) + (2 if question.fleets.one_kind else 0) + splits
    # What the policies were measured with on workers for both stages is known by the time that KV moves.
    moving = (2 if BY_REQUEST in tried else 3) * seeds if splits else 0
    return len(tried) * seeds + searches * (5 + 2 * (seeds - 1)) + moving


def _choose_fleet(laboratory: Laboratory, findings: Findings) -> None:
    """Where workers of either kind could be bought, the kind that does better."""
    fleets = findings.question.fleets.together
    if len(fleets) == 1:
        return
    cases = [Case(PLAIN[0], fleet) for fleet in fleets]
    laboratory.measure((case, 0) for case in cases)

    def rank(case: Case) -> tuple[float, float]:
        metrics = laboratory.metrics(case, 0)
        assert metrics is not None
        return metrics["goodput_share"], -metrics["e2e_mean_ms"]

    findings.together = max(cases, key=rank).fleet
    findings.traffic = traffic(findings.question, findings.excerpt, findings.together)


def _policies(laboratory: Laboratory, findings: Findings) -> None:
    """All policies on the fleet as it is."""
    seeds = range(findings.question.seeds)
    cases = [Case(name, findings.together) for name in _tried(findings)]
    laboratory.measure((case, seed) for seed in seeds for case in cases)
    _judge_policies(laboratory, findings)


def _judge_policies(laboratory: Laboratory, findings: Findings) -> None:
    cases = [Case(name, findings.together) for name in _tried(findings)]
    found = {case.policy: runs for case in cases if (runs := laboratory.by_seed(case))}
    if not found:
        return
    findings.policies = found
    findings.comparisons = compared(found)
    findings.results = laboratory.results(cases, interrupted=findings.interrupted)
    findings.plain = simplest([name for name in PLAIN if name in found], findings.comparisons)
    aware = [name for name in AWARE if name in found]
    findings.aware = best_aware(findings, aware) if aware else None


def _loads(laboratory: Laboratory, findings: Findings) -> None:
    """How much more traffic the fleet takes."""
    names = [findings.plain, *(name for name in AWARE if name in findings.policies)]
    ladders = {
        name: ([Case(name, findings.together, rate) for rate in LOADS], AS_IT_IS) for name in dict.fromkeys(names)
    }
    findings.loads.update(limits(laboratory, ladders, lambda case: case.rate))
    _judge_policies(laboratory, findings)


def _splits(laboratory: Laboratory, findings: Findings) -> None:
    """The best ratio of workers for prefill and for decode, against the same workers together."""
    splits = findings.question.fleets.split
    if not splits:
        return
    policy = recommended(findings)
    split = best_split(laboratory, splits, policy)
    cases = [Case(policy, findings.together), Case(policy, split)]
    laboratory.measure((case, seed) for case in cases for seed in range(findings.question.seeds))
    runs = {case.fleet.name: laboratory.by_seed(case) for case in cases}
    ladder = [Case(policy, split, rate) for rate in LOADS]
    start = _rung(findings.loads.get(policy))
    load = limits(laboratory, {SPLIT: (ladder, start)}, lambda case: case.rate)
    findings.split, findings.split_policy, findings.split_runs = split, policy, runs
    findings.split_comparisons = compared(runs)
    findings.loads.update(load)


def _moving(laboratory: Laboratory, findings: Findings) -> None:
    """Whether KV that moves by request, between workers for both stages or from those of the split, is worth it."""
    if findings.split is None:
        return
    cases = {
        TOGETHER: Case(BY_REQUEST, findings.together),
        MOVING: Case(BY_REQUEST, findings.together, moves=True),
        APART: Case(BY_REQUEST, findings.split),
    }
    seeds = range(findings.question.seeds)
    laboratory.measure((case, seed) for case in cases.values() for seed in seeds)
    findings.moving = {name: laboratory.by_seed(case) for name, case in cases.items()}
    findings.moving_comparisons = compared(findings.moving, DECIDES_MOVING)


def _rung(limit: Limit | None) -> int:
    value = None if limit is None else limit.value
    return AS_IT_IS if value is None else LOADS.index(value)


def _sizes(laboratory: Laboratory, findings: Findings) -> None:
    """How many workers the load needs, also with the default, where another policy is to be set."""
    profile = findings.question.fleets.one_kind
    if profile is None:
        return
    aware = findings.aware
    if findings.together.workers == 1:
        aware = DEFAULT  # On one worker nothing can be compared, but the load may need several.
    names = [findings.plain, *(() if aware is None else (aware, DEFAULT))]
    ladders = {}
    for name in dict.fromkeys(names):
        most = most_workers(findings.together.workers)
        cases = [Case(name, _fleet(findings, profile, workers)) for workers in range(most, 0, -1)]
        load = findings.loads[name].value if name in findings.loads else None
        guess = math.ceil(findings.together.workers / load) if load else most
        ladders[name] = (cases, most - min(max(guess, 1), most))
    findings.sizes = limits(laboratory, ladders, lambda case: float(case.fleet.workers))


def _fleet(findings: Findings, profile: Profile, workers: int) -> Fleet:
    return findings.together if workers == findings.together.workers else of_size(profile, workers)


def most_workers(workers: int) -> int:
    """The largest fleet that is looked at."""
    return max(workers, min(max(_FEWEST_SIZES, 4 * workers), _MOST_SIZES))
