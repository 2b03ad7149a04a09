"""Parameters: what is fitted, and its way to and from a vector of logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pointsman.core.timing.step import StepCoefficients

Floats = npt.NDArray[np.float64]

UNITS = {
    "a": "ms a step",
    "b": "ms a sequence",
    "c": "ms per 1,000 KV tokens",
    "d": "ms a prompt token",
    "q": "ms per square of a prompt token",
    "overhead": "ms a request",
}
"""All parameters, in the order of vectors."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Step coefficients and the time that each request spends outside the engine's steps."""

    step: StepCoefficients
    overhead_ms: float = 0.0

    def value(self, name: str) -> float:
        """One of them, by its name in `UNITS`."""
        step = self.step
        values = {
            "a": step.a_ms,
            "b": step.b_ms_per_sequence,
            "c": step.c_ms_per_1000_context_tokens,
            "d": step.d_ms_per_prefill_token,
            "q": step.q_ms_per_square_token,
            "overhead": self.overhead_ms,
        }
        return values[name]

    def moved(self, names: tuple[str, ...], logs: Floats) -> Parameters:
        """Each of `names` times the exponential of its entry in `logs`: nothing gets below physical zero."""
        factors = dict(zip(names, np.exp(logs).tolist(), strict=True))
        values = {name: self.value(name) * factors.get(name, 1.0) for name in UNITS}
        return Parameters(
            StepCoefficients(values["a"], values["b"], values["c"], values["d"], values["q"]), values["overhead"]
        )

    def logs_from(self, names: tuple[str, ...], centre: Parameters) -> Floats:
        """The vector that moves `centre` here."""
        return np.array([math.log(self.value(name) / centre.value(name)) for name in names])
