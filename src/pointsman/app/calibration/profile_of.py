"""From a fit to a profile file."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.app.calibration.fit import Solution
from pointsman.app.calibration.quality import Quality
from pointsman.edge.traces.profile_file import SCHEMA, Measured, ProfileFile, Step, Valid

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What a fit can't tell of the engine."""

    name: str
    kv_tokens: int
    kv_bytes_per_token: int
    gpu: str = "unknown"
    model: str = "unknown"
    engine: str = "unknown"
    tensor_parallel: int = 1


def profile_of(solution: Solution, quality: Quality, identity: EngineIdentity, source: str) -> ProfileFile:
    """The content of a profile file."""
    step = solution.parameters.step
    errors = [errors.mape for errors in (quality.held_out_ttft, quality.held_out_tpot) if errors is not None]
    return ProfileFile(
        schema=SCHEMA,
        name=identity.name,
        step=Step(
            a_ms=_rounded(step.a_ms),
            b_ms_per_sequence=_rounded(step.b_ms_per_sequence),
            c_ms_per_1000_context_tokens=_rounded(step.c_ms_per_1000_context_tokens),
            d_ms_per_prefill_token=_rounded(step.d_ms_per_prefill_token),
            q_ms_per_square_token=_rounded(step.q_ms_per_square_token),
        ),
        overhead_ms=_rounded(solution.parameters.overhead_ms),
        kv_tokens=identity.kv_tokens,
        kv_bytes_per_token=identity.kv_bytes_per_token,
        gpu=identity.gpu,
        model=identity.model,
        engine=identity.engine,
        tensor_parallel=identity.tensor_parallel,
        source=source,
        mape=_rounded(max(errors)) if errors else None,
        valid=Valid.of(quality.valid),
        measured=Measured(
            requests=quality.requests,
            scheduling="ahead" if quality.ahead else "between",
            warnings=quality.warnings,
        ),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
