"""Pairs that can't pass KV on are counted and listed."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from pointsman.core.model.worker import Role
from pointsman.edge.cluster.kv_pairs import KvPairs
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.serving.kv_pairs_metrics import KvPairsCollector, refused_pairs


def test_a_pair_without_connectors_is_counted_and_listed() -> None:
    pairs = KvPairs()
    registry = CollectorRegistry()
    registry.register(KvPairsCollector(pairs))
    assert b"pointsman_kv_pairs_refused 0.0" in generate_latest(registry)
    for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
        facts = EngineFacts(kind="vllm", version="1", models=("m",))
        pairs.engine_known(WorkerSource(name, f"http://{name}:1", role=role), facts, ())
    assert b"pointsman_kv_pairs_refused 1.0" in generate_latest(registry)
    (pair,) = refused_pairs(pairs)
    assert (pair.prefill, pair.decode) == ("p", "d")
    assert pair.reason == pairs.refused["p", "d"]
