"""Runs in which no KV moves are what they were before any could."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from pointsman.app.simulate.outcome import Outcome
from pointsman.app.simulate.setup import Drain, Failure, Setup, WorkerGroup
from pointsman.core.model.worker import Role
from pointsman.core.timing.profiles import profile

LLAMA = profile("h100/llama-8b")
FIELDS = (
    "arrival_ms",
    "dispatched_ms",
    "first_token_ms",
    "end_ms",
    "output_tokens",
    "cached_tokens",
    "worker",
    "status",
)


def fingerprint(outcome: Outcome) -> str:
    """Of what became of each request, to a nanosecond."""
    digest = hashlib.sha256()
    for name in FIELDS:
        values = getattr(outcome, name)
        digest.update(np.round(values, 6).tobytes() if values.dtype.kind == "f" else values.tobytes())
    return digest.hexdigest()[:16]


SETUPS = {
    "four": Setup((WorkerGroup(LLAMA, 4),)),
    "failures": Setup(
        (WorkerGroup(LLAMA, 4),),
        failures=(Failure(1, 500.0, 300.0), Failure(2, 900.0)),
        drains=(Drain(0, 1500.0),),
        retries=1,
    ),
    "three front ends": Setup((WorkerGroup(LLAMA, 4),), front_ends=3),
    "learned": Setup((WorkerGroup(LLAMA, 3, slow=1.5), WorkerGroup(LLAMA, 1)), learn_times=True, kv_events=False),
    "decode alone": Setup((WorkerGroup(LLAMA, 2, Role.DECODE), WorkerGroup(LLAMA, 2))),
}
KNOWN = {
    ("four", "cost"): "ca9a1afe20413eae",
    ("four", "kv"): "020e5a2a98818c7d",
    ("four", "power_of_two"): "cecb74e5ae525743",
    ("failures", "cost"): "e5343bc9b5422348",
    ("failures", "kv"): "b5dd0d98b28b0ec3",
    ("failures", "power_of_two"): "f61bac7718e2edc5",
    ("three front ends", "cost"): "386781536537b7c9",
    ("three front ends", "kv"): "75fed68f35b60f51",
    ("three front ends", "power_of_two"): "d8f7c569503e0c9c",
    ("learned", "cost"): "3dac4f29204e8e2a",
    ("learned", "kv"): "086ebdeeab917ce7",
    ("learned", "power_of_two"): "31f2303fe9585c67",
    ("decode alone", "cost"): "ca9a1afe20413eae",
    ("decode alone", "kv"): "020e5a2a98818c7d",
    ("decode alone", "power_of_two"): "cecb74e5ae525743",
}


@pytest.mark.parametrize(("setup", "policy"), KNOWN)
def test_the_same_happens_as_ever(play, shared_prompts, setup: str, policy: str) -> None:
    outcome = play(shared_prompts(300, every_ms=8.0), SETUPS[setup], policy, seed=3).outcome
    assert fingerprint(outcome) == KNOWN[setup, policy]
