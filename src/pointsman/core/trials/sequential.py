"""Limits and tests that stay valid however often somebody looks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LEAST_FREEDOM = 6.0
"""With fewer independent units an error is too unsure itself to judge by."""


def reach(error: float, freedom: float, scale: float, alpha: float) -> float:
    """How far the true value may be from the estimate, on one side, at any of all looks but with chance `alpha`.

    A confidence sequence: the boundary of a mixture of Gaussian martingales, √(2 (u + 1)/u · ln(1 + √(u + 1)/(2α)))
    standard errors, where u = scale²/error² is the information in units of 1/scale² (Robbins 1970; for estimated errors
    Waudby-Smith and others 2021). It is tightest for effects of about `scale`. A limit made for one look would be
    crossed by two equal arms sooner or later. Errors from few units are wider: the boundary is taken to Student's t.
    """
    if error <= 0.0 or freedom < LEAST_FREEDOM:
        return math.inf
    information = (scale / error) ** 2
    z = math.sqrt(2.0 * (information + 1.0) / information * math.log1p(math.sqrt(information + 1.0) / (2.0 * alpha)))
    return error * _student(z, freedom)


def _student(z: float, freedom: float) -> float:
    """The value of Student's t as unlikely as `z` is in a normal distribution (Gaver and Kafadar 1984)."""
    return math.sqrt(freedom * math.expm1(min(z * z * (freedom - 1.5) / (freedom - 1.0) ** 2, 600.0)))


_ODDS = (1.5, 2.0, 4.0, 8.0, 16.0, 64.0)


@dataclass(slots=True)
class FailureBet:
    """Whether failures come more often in the trial than its share says, judged after each.

    A bet against "as often": each failure multiplies it by λ/(1 + p(λ − 1)) if the trial's, else by 1/(1 + p(λ − 1)),
    where p is the trial's share of the requests so far; the mean over several λ is kept. With equal arms its mean stays
    1, so that it ever reaches 1/α has at most chance α (Ville's inequality), for any number of looks.
    """

    logs: list[float] = field(default_factory=lambda: [0.0] * len(_ODDS))
    """Of what was won so far, one entry a λ."""

    def add(self, of_trial: bool, share: float) -> None:
        """One failure; `share`: of the requests, above 0 and below 1."""
        for i, odds in enumerate(_ODDS):
            self.logs[i] += (math.log(odds) if of_trial else 0.0) - math.log1p(share * (odds - 1.0))

    def evidence(self) -> float:
        """How many times more likely the failures are with a worse trial; 1: nothing speaks for it."""
        most = max(self.logs)
        return math.exp(min(most + math.log(sum(math.exp(x - most) for x in self.logs) / len(_ODDS)), 600.0))
