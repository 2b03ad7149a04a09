"""The recorded Mooncake conversation trace, and what policies make of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest


@pytest.fixture(scope="module")
def mooncake() -> Trace:
    folder = os.environ.get("POINTSMAN_DATA")
    if not folder:
        pytest.skip("POINTSMAN_DATA is not set: the recorded trace mooncake/conversation_trace.jsonl is not here")
    lines = (Path(folder) / "mooncake" / "conversation_trace.jsonl").read_text().splitlines()[:1500]
    rows = [json.loads(line) for line in lines]
    requests = [
        TraceRequest(row["timestamp"], row["input_length"], row["output_length"], tuple(row["hash_ids"]))
        for row in rows
    ]
    return Trace("mooncake", requests, 512)


def test_affinity_pays(mooncake: Trace) -> None:
    setup = Setup((WorkerGroup(profile("h100/llama-70b-tp4"), 6),))
    hit, ttft_ms = {}, {}
    for policy in ("round_robin", "kv"):
        outcome = simulate(mooncake, setup, PolicyRegistry().get(policy))
        assert outcome.done.all()
        hit[policy] = outcome.cached_tokens.sum() / outcome.prompt_tokens.sum()
        ttft_ms[policy] = outcome.ttft_ms.mean()
    assert hit["kv"] > 2 * hit["round_robin"]
    assert ttft_ms["kv"] < ttft_ms["round_robin"]
