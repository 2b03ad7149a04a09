"""Objective: how far replayed times are from the measured ones, in logarithms, each request counted twice at most:
its time to first token and its time per token afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pointsman.app.calibration.measurement import Floats, Measurement
from pointsman.app.calibration.parameters import Parameters
from pointsman.app.calibration.replay import Replayed, Replayer
from pointsman.core.engine_model.config import EngineConfig

Ints = npt.NDArray[np.intp]

LEAST_TOKENS = 4
"""Answers with fewer tokens are not asked for their time per token."""
# A replay that is far too slow is not worth its time: whatever has not ended by then counts as ended then.
_PATIENCE = 1.5
_DOUBT = 0.03
"""Of the logarithm of a time per token next to traffic that is not known, but assumed to have gone on as it was."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """log(replayed / measured) of all that was measured, always in the same order."""

    ttft: Floats
    """Of the step, or steps, to each first token; 0 where the replay had none to compare."""
    ttft_weight: Floats
    """1/√n of n that came with the same step."""
    ttft_request: Ints
    """Numbers of requests over all measurements."""
    tpot: Floats
    tpot_weight: Floats
    """1/√n where n answers were made at a time, as they have the same steps in common."""
    tpot_request: Ints
    tpot_doubt: Floats
    """Spread that is added because traffic had to be assumed."""

    def scaled(self, spread: tuple[float, float], traffic: float = 0.0) -> Floats:
        """All divided by their spread: of TTFT, and of TPOT where all traffic is known.

        `traffic`: logarithm of how much slower the assumed traffic makes tokens than the one there was.
        """
        tpot = self.tpot - np.where(self.tpot_doubt > 0, traffic, 0.0)
        return np.concatenate(
            [
                self.ttft * self.ttft_weight / spread[0],
                tpot * self.tpot_weight / np.hypot(spread[1], self.tpot_doubt),
            ]
        )

    @property
    def request(self) -> Ints:
        """The request of each entry of `scaled`."""
        return np.concatenate([self.ttft_request, self.tpot_request])


class Objective:
    """Replays measurements of engines of one kind and compares."""

    def __init__(self, measured: Sequence[Measurement], engine: EngineConfig, *, ahead: bool) -> None:
        self.ahead = ahead
        self.replayers = tuple(Replayer(one, engine, ahead=ahead) for one in measured)
        self._targets = [_Target(one) for one in measured]

    @property
    def requests(self) -> int:
        """In all measurements."""
        return sum(len(replayer.measured) for replayer in self.replayers)

    @property
    def shortest_ttft_ms(self) -> float:
        """Of all requests that can be compared."""
        return min((target.shortest_ttft_ms for target in self._targets), default=0.0)

    def residuals(self, parameters: Parameters) -> Residuals:
        """Replay everything and compare."""
        parts = []
        offset = 0
        for replayer, target in zip(self.replayers, self._targets, strict=True):
            replayed = replayer.run(parameters, target.until_ms)
            parts.append(target.compare(replayed, offset))
            offset += len(replayer.measured)
        return Residuals(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in Residuals.__dataclass_fields__)
        )


class _Target:
    """What of one measurement can be compared."""

    def __init__(self, measured: Measurement) -> None:
        self._measured = measured
        gaps = measured.output_tokens - 1
        with np.errstate(invalid="ignore"):
            usable = measured.last_ms > measured.first_ms
        self._lasts = np.flatnonzero(usable & (gaps >= LEAST_TOKENS - 1))
        # Answers that shared the engine with requests that nobody knows are told apart from the others.
        self._doubt = np.where(measured.last_ms > measured.horizon_ms, _DOUBT, 0.0)[self._lasts]
        self._decode_ms = (measured.last_ms - measured.first_ms)[self._lasts]
        self._tpot_weight = np.ones(len(self._lasts))
        if len(self._lasts):
            span_ms = float(measured.last_ms[self._lasts].max() - measured.first_ms[self._lasts].min())
            self._tpot_weight /= math.sqrt(max(1.0, float(self._decode_ms.sum()) / span_ms))
        self.shortest_ttft_ms = float(np.nanmin(measured.first_ms - measured.arrival_ms, initial=np.inf))
        self.until_ms = _PATIENCE * float(np.nanmax(np.concatenate([measured.first_ms, measured.last_ms])))

    def compare(self, replayed: Replayed, offset: int) -> Residuals:
        errors = self._first_errors(replayed)[1:]  # the first one had to wait for compilation and loading
        decode_ms = np.where(np.isnan(replayed.decode_ms), replayed.end_ms, replayed.decode_ms)[self._lasts]
        return Residuals(
            ttft=np.where(np.isnan(errors), 0.0, errors),
            ttft_weight=np.where(np.isnan(errors), 0.0, 1 / np.sqrt(replayed.together[1:])),
            ttft_request=np.arange(1, len(self._measured)) + offset,
            tpot=np.log(np.maximum(decode_ms, 1e-6) / self._decode_ms),
            tpot_weight=self._tpot_weight,
            tpot_request=self._lasts + offset,
            tpot_doubt=self._doubt,
        )

    def _first_errors(self, replayed: Replayed) -> Floats:
        """Those that could be compared; where a slow replay ended before, by how much it lagged behind by then."""
        measured_ms = self._measured.first_ms
        missing = np.isnan(replayed.first_ms) & np.isfinite(measured_ms)
        if not missing.any():
            return replayed.first_error
        reached_ms = measured_ms[np.isfinite(replayed.first_ms) & np.isfinite(measured_ms)]
        until_ms = float(reached_ms.max() if len(reached_ms) else np.nanmin(measured_ms))
        lag = math.log(max(replayed.end_ms, 1e-6) / max(until_ms, 1e-6))
        found: Floats = np.where(missing, max(0.0, lag), replayed.first_error)
        return found


def robust_scale(residuals: Floats, least: float) -> float:
    """Spread of residuals around zero that outliers do not widen; at least `least`."""
    return max(least, 1.4826 * float(np.median(np.abs(residuals)))) if len(residuals) else least


def soft_l1(residuals: Floats) -> float:
    """Sum of squares near zero, of absolute values far from it: it shows the way from anywhere."""
    return float(np.sum(2.0 * (np.sqrt(1.0 + residuals**2) - 1.0)))


def cauchy(residuals: Floats) -> float:
    """Sum of squares near zero, of logarithms far from it: what was not as modelled at all hardly counts."""
    return float(np.sum(np.log1p(residuals**2)))


def cauchy_weights(residuals: Floats) -> Floats:
    """Weights with which least squares have the same solution."""
    return 1.0 / (1.0 + residuals**2)
