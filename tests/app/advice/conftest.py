"""Consultations that several tests look at."""

from __future__ import annotations

import pytest

from pointsman.app.advice.consult import consult
from pointsman.app.advice.findings import Findings
from pointsman.core.workload.trace import Trace
from support.known_traffic import Consult, question


@pytest.fixture(scope="session")
def consulted() -> Consult:
    """Findings for traffic and GPUs; the same question is looked into once."""
    known: dict[object, Findings] = {}

    def find(trace: Trace, gpus: str = "4", **more: object) -> Findings:
        key = (trace, gpus, tuple(sorted(more.items())))
        if key not in known:
            known[key] = consult(question(trace, gpus, **more))  # type: ignore[arg-type]
        return known[key]

    return find
