"""Step times that a class of workers has not shown itself, from classes that are the same engines in another role.

Where prefill and decode are apart, workers that decode compute no prompts, and what they would take for one is then no
more than a proportion that somebody's prior had. What workers that compute prompts found becomes their prior instead,
so a few prompts of their own are worth more. The same for steps of decoding.
"""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.core.timing.interval import Interval
from pointsman.core.timing.regression import StepRegression

_PROMPT = Interval(1.0, 0.0, prefill_tokens=2_000.0, prefill_squares=2_000.0**2)
_DECODING = Interval(1.0, 1.0, sequence_steps=8.0, context_token_steps=8_000.0)
_PARTS = ((_PROMPT, ("d", "q")), (_DECODING, ("a", "b", "c")))
_ALIKE_SD = 0.3
"""Relative: how far the times of one role may be from those of another one, however well they are known."""
_LEAST_EVIDENCE = 4.0
"""A relative deviation of a half: what is known less well is not worth more than one's own proportions."""


def borrow(own: StepRegression, others: Iterable[StepRegression]) -> None:
    """Let a class expect what the one of the others found that knows best, where any knows enough.

    What was told once holds until somebody tells something else.
    """
    others = tuple(others)
    for work, features in _PARTS:
        evidence, lender = max(
            ((other.evidence(work), other) for other in others), key=lambda one: one[0], default=(0.0, None)
        )
        if lender is not None and evidence >= _LEAST_EVIDENCE:
            own.expect(lender.coefficients, features, _ALIKE_SD)
