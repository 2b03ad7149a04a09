"""WorkerTimes: what policies are told of a worker's speed."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.timing.step import StepCoefficients


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """Step times of one worker, and how far what is predicted from them is right."""

    step: StepCoefficients
    overhead_ms: float = 0.0
    """Fixed time of a request on its way to the engine and back."""
    step_ratios: tuple[float, float] = (1.0, 1.0)
    """P50 and P90 of actual over predicted, of steps."""
    ttft_ratios: tuple[float, float] = (1.0, 1.0)
    """The same of times to the first token."""
