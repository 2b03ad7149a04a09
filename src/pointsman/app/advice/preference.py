"""Which policy is preferred where a layer runs: its default, unless another is surely and noticeably better.

The default needs no setting, so whoever is told to set another one must gain by it. It is not enough that nobody beats
the other one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.app.advice.choice import beats
from pointsman.app.advice.findings import AWARE, DEFAULT, Findings
from pointsman.app.advice.worth import more_load, reasons, recommended


def surely_better(findings: Findings, first: str, second: str) -> bool:
    """By what was measured at the load as it is; where that tells nothing, by the load that they take."""
    if beats(first, second, findings.comparisons):
        return True
    return not beats(second, first, findings.comparisons) and more_load(findings, first, second)


def preferred(findings: Findings, names: Sequence[str]) -> str:
    """The first of `names`, unless others surely beat it; then of these the simplest that no other of them beats.

    After the first one `names` are in order, the simplest before the others.
    """
    better = [name for name in names[1:] if surely_better(findings, name, names[0])]
    chosen = better[0] if better else names[0]
    for other in better[1:]:
        if surely_better(findings, other, chosen):
            chosen = other
    return chosen


def best_aware(findings: Findings, names: Sequence[str]) -> str:
    """The preferred one of `names`; where the default is that without being worth a layer, one that is."""
    best = preferred(findings, names)
    if best != DEFAULT or reasons(findings, best):
        return best
    paying = [name for name in names if reasons(findings, name)]
    return preferred(findings, paying) if paying else best


def layer_policy(findings: Findings) -> str:
    """What should decide where a layer runs, be it worth it or not."""
    best = recommended(findings)
    if best in AWARE:
        return best
    # What is advised without a layer comes first: it is the simplest, and no other is surely better.
    if surely_better(findings, best, DEFAULT):
        return best
    return findings.aware or DEFAULT
