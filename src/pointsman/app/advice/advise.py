"""The advice: findings put into one document."""

from __future__ import annotations

from pointsman import __version__
from pointsman.app.advice.cache_words import memory
from pointsman.app.advice.caveats import assumed, unknown
from pointsman.app.advice.choice import mean_of
from pointsman.app.advice.document import (
    SCHEMA,
    Advice,
    CacheAnswer,
    FleetAnswer,
    LimitAnswer,
    Section,
    SplitAnswer,
)
from pointsman.app.advice.findings import SPLIT, Findings
from pointsman.app.advice.fleet_words import apart, gpus, stages
from pointsman.app.advice.limits import Limit
from pointsman.app.advice.moving_words import by_request, moved_share, moving
from pointsman.app.advice.policy_words import policy
from pointsman.app.advice.preference import layer_policy
from pointsman.app.advice.worth import recommended, too_little, undecided, worth
from pointsman.app.advice.worth_words import coordination, headline
from pointsman.app.experiments.summary import summarize


def advice(findings: Findings, notes: tuple[str, ...] = ()) -> Advice:
    """Answer a question from its findings; `notes` on the trace go to what is not known."""
    question, text = findings.question, headline(findings)
    unknown_yet = too_little(findings) or undecided(findings)
    sections = (
        Section("Policy", policy(findings)),
        Section("GPUs", gpus(findings)),
        Section("Prefill and decode apart", [*stages(findings), *moving(findings)]),
        Section("KV memory", memory(findings)),
        Section("Measured", coordination(findings)),
    )
    results = findings.results
    return Advice(
        schema=SCHEMA,
        version=__version__,
        trace=question.trace.name,
        requests=len(question.trace),
        simulated_requests=len(findings.excerpt.trace),
        slo=str(question.slo),
        slo_assumed=question.slo_assumed,
        target=question.target,
        seeds=question.seeds,
        worth=worth(findings).value,
        headline=text,
        policy=None if unknown_yet else recommended(findings),
        layer_policy=None if unknown_yet else layer_policy(findings),
        fleet=_fleet(findings),
        split=_split(findings),
        cache=_cache(findings),
        sections=[section for section in sections if section.sentences],
        assumed=assumed(findings),
        unknown=[*unknown(findings), *notes],
        interrupted=findings.interrupted,
        comparison=None if results is None else summarize(results, question.target, [text]),
    )


def _fleet(findings: Findings) -> FleetAnswer:
    fleet = findings.together
    # With the policy that happened to be simulated before it was interrupted they may be too few, with another enough.
    runs = None if too_little(findings) else findings.policies.get(recommended(findings))
    share = mean_of(runs, "goodput_share") if runs else None
    return FleetAnswer(
        fleet=fleet.name,
        workers=fleet.workers,
        gpus=fleet.gpus,
        enough=None if share is None else share >= findings.question.target,
        goodput_share=share,
        load={name: _limit(limit) for name, limit in findings.loads.items() if name != SPLIT},
        workers_needed={name: _limit(limit) for name, limit in findings.sizes.items()},
        hopeless_share=findings.traffic.hopeless_share,
    )


def _split(findings: Findings) -> SplitAnswer | None:
    answer = apart(findings)
    if answer is None or findings.split is None:
        return None
    load = findings.loads.get(SPLIT)
    moving = by_request(findings)
    return SplitAnswer(
        apart=answer.value,
        best_ratio=findings.split.name,
        load=None if load is None else _limit(load),
        by_request=None if moving is None else moving.value,
        moved_share=moved_share(findings),
    )


def _cache(findings: Findings) -> CacheAnswer | None:
    caches = findings.traffic.caches
    if caches is None:
        return None
    found = {name: mean_of(runs, "hit_share") for name, runs in findings.policies.items()}
    return CacheAnswer(
        reusable_share=caches.share,
        working_set_tokens=caches.working_set_tokens,
        working_set_bytes=caches.working_set_bytes,
        fleet_tokens=findings.together.kv_tokens,
        fleet_bytes=findings.together.kv_bytes,
        found_share=found,
    )


def _limit(limit: Limit) -> LimitAnswer:
    known = limit.known
    low, high = (None, None) if known is None else known
    return LimitAnswer(limit.value, low, high, limit.at_end)
