"""Findings that nobody simulated: measures of policies that differ as a test says."""

from __future__ import annotations

import random
from collections.abc import Mapping

from pointsman.app.advice.choice import DECIDES, compared, simplest
from pointsman.app.advice.excerpt import Excerpt
from pointsman.app.advice.findings import AWARE, PLAIN, Findings
from pointsman.app.advice.limits import LOADS, Limit
from pointsman.app.advice.preference import best_aware
from pointsman.app.advice.traffic import traffic as facts
from pointsman.app.experiments.comparison import BySeed
from pointsman.core.workload.trace import Trace
from support.known_traffic import question, traffic

SEEDS = 5
Factors = Mapping[str, float]


def made_findings(
    measures: Mapping[str, Factors] | None = None,
    loads: Mapping[str, tuple[float, ...]] | None = None,
    *,
    trace: Trace | None = None,
    names: tuple[str, ...] = (*PLAIN, *AWARE),
    gpus: str = "3",
    seeds: int = SEEDS,
) -> Findings:
    """All policies alike but those named: their measures are multiplied, `goodput_share` is what is given.

    `loads`: what a policy takes under each seed; without, no loads were looked for.
    """
    asked = question(trace or traffic(20, 100, groups=4), gpus, seeds=seeds)
    together, excerpt = asked.fleets.together[0], Excerpt(asked.trace, 0, len(asked.trace), 1.0)
    findings = Findings(asked, excerpt, together, facts(asked, excerpt, together))
    findings.policies = {name: _runs(name, (measures or {}).get(name, {}), seeds) for name in names}
    findings.comparisons = compared(findings.policies)
    findings.plain = simplest([name for name in PLAIN if name in names], findings.comparisons)
    findings.loads = {
        name: Limit(dict(enumerate(by_seed)), LOADS[-1], LOADS[0]) for name, by_seed in (loads or {}).items()
    }
    aware = [name for name in AWARE if name in names]
    findings.aware = best_aware(findings, aware) if aware else None
    return findings


def _runs(name: str, factors: Factors, seeds: int) -> BySeed:
    """Measures around 1, which vary by a hundredth."""
    chance = random.Random(name)
    runs = {}
    for seed in range(seeds):
        runs[seed] = {key: factors.get(key, 1.0) * chance.lognormvariate(0, 0.01) for key in DECIDES}
        runs[seed]["goodput_share"] = factors.get("goodput_share", 0.9)
        runs[seed] |= {"saturated": 0.0, "queue_growth": 0.0, "failed_share": 0.0}
        runs[seed] |= {"ttft_mean_ms": 1.0, "e2e_mean_ms": 2.0, "requests_s": 1.0, "preemptions": 0.0, "hit_share": 0.5}
    return runs
