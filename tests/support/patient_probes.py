"""Probes that come often, and wait for answers as long as the slowest machine takes."""

from __future__ import annotations

from pointsman.edge.cluster.timing import ProbeTiming


class PatientProbes(ProbeTiming):
    """`ProbeTiming`, whose time limit is not shorter than its interval."""

    __slots__ = ()

    @property
    def timeout_s(self) -> float:
        """For one call."""
        return 8.0
