from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.interval import FEATURES, Interval
from pointsman.core.timing.step import StepCoefficients


def test_an_interval_takes_as_long_as_its_steps_together() -> None:
    step = StepCoefficients(10.0, 0.5, 2.0, 0.1, 1e-6)
    batches = [(4, 4_000, 512, 512.0**2), (5, 5_500, 0, 0.0), (5, 5_505, 100, 1_100.0**2 - 1_000.0**2)]
    whole = Interval(
        elapsed_ms=1.0,
        steps=len(batches),
        sequence_steps=sum(batch[0] for batch in batches),
        context_token_steps=sum(batch[1] for batch in batches),
        prefill_tokens=sum(batch[2] for batch in batches),
        prefill_squares=sum(batch[3] for batch in batches),
        starts=1,
    )
    assert whole.predicted_ms(step, 7.0) == pytest.approx(sum(step.step_ms(*batch) for batch in batches) + 7)
    values = (10.0, 0.5, 2.0, 0.1, 1e-6, 7.0)
    assert len(whole.features) == len(FEATURES)
    assert sum(x * value for x, value in zip(whole.features, values, strict=True)) == pytest.approx(
        whole.predicted_ms(step, 7.0)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"elapsed_ms": 0.0, "steps": 1}, "must take time, not 0.0 ms"),
        ({"elapsed_ms": float("nan"), "steps": 1}, "must take time"),
        ({"elapsed_ms": 1.0, "steps": -1}, "sums must be at least 0"),
        ({"elapsed_ms": 1.0, "steps": 1, "prefill_tokens": float("nan")}, "at least 0"),
        ({"elapsed_ms": 1.0, "steps": 1, "weight": 0.0}, r"weight in \(0, 1\]"),
        ({"elapsed_ms": 1.0, "steps": 0}, "without a step"),
    ],
)
def test_what_cannot_have_been_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Interval(**values)
