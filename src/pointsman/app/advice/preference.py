"""Which policy is preferred where a layer runs: its default, unless another is surely and noticeably better.

The default needs no setting, so whoever is told to set another one must gain by it. It is not enough that nobody beats
the other one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.app.advice.choice import beats
from pointsman.app.advice.findings import AWARE, DEFAULT, PLAIN, Findings
from pointsman.app.advice.worth import more_load, recommended


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


def layer_policy(findings: Findings) -> str:
    """What should decide where a layer runs, be it worth it or not."""
    best = recommended(findings)
    if best in AWARE:
        return best
    others = [name for name in (*PLAIN, *AWARE) if name in findings.policies and name != DEFAULT]
    return preferred(findings, [DEFAULT, *others])
