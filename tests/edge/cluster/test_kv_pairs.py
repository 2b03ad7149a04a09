"""Pairs that can't pass KV on are named once, with the reason."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.worker import Role
from pointsman.edge.cluster.kv_pairs import KvPairs
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts
from support.log_lines import own_lines

NIXL = KvShape(HandShake.VLLM_NIXL, block_size_tokens=16)


def know(pairs: KvPairs, name: str, role: Role, kv: KvShape | None = NIXL, model: str = "m", **said: Any) -> None:
    source = WorkerSource(name, f"http://{name}:8000", role=role, **said)
    pairs.engine_known(source, EngineFacts(kind="vllm", version="1", models=(model,), kv=kv), ())


def test_a_pair_that_fits_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    pairs = KvPairs()
    know(pairs, "p", Role.PREFILL)
    know(pairs, "d", Role.DECODE)
    assert pairs.refused == {}
    assert not own_lines(caplog)


def test_one_that_does_not_fit_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    pairs = KvPairs()
    for _ in range(3):
        know(pairs, "p", Role.PREFILL)
        know(pairs, "d", Role.DECODE, KvShape(HandShake.VLLM_NIXL, block_size_tokens=32))
    assert pairs.refused == {("p", "d"): "block sizes differ: 16 and 32"}
    assert own_lines(caplog) == ["p computes no prompts for d: block sizes differ: 16 and 32"]


@pytest.mark.parametrize(("first", "second", "says"), [(None, NIXL, "the first"), (NIXL, None, "the second")])
def test_an_engine_without_a_connector_is_named(first: KvShape | None, second: KvShape | None, says: str) -> None:
    pairs = KvPairs()
    know(pairs, "d", Role.BOTH, second)
    know(pairs, "p", Role.PREFILL, first)
    assert says in pairs.refused["p", "d"]


def test_one_that_the_operator_left_out_is_named_as_well() -> None:
    pairs = KvPairs()
    know(pairs, "p", Role.PREFILL)
    know(pairs, "d", Role.DECODE, moves_kv=False)
    assert "kv_cache_transfer is off" in pairs.refused["p", "d"]


def test_a_restart_that_mends_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pairs = KvPairs()
    know(pairs, "p", Role.PREFILL)
    know(pairs, "d", Role.DECODE, None)
    know(pairs, "d", Role.DECODE)
    assert pairs.refused == {}
    assert own_lines(caplog)[-1] == "p and d can pass KV on now"


def test_engines_that_compute_everything_or_another_model_are_not_expected_to() -> None:
    pairs = KvPairs()
    know(pairs, "a", Role.BOTH, None)
    know(pairs, "b", Role.BOTH)
    know(pairs, "p", Role.PREFILL, None, "other")
    know(pairs, "q", Role.PREFILL, None)
    know(pairs, "d", Role.DECODE, model="third")
    assert set(pairs.refused) == {("q", "a"), ("q", "b")}


def test_what_left_is_forgotten() -> None:
    pairs = KvPairs()
    know(pairs, "p", Role.PREFILL, None)
    know(pairs, "d", Role.DECODE)
    pairs.engine_left(WorkerSource("d", "http://d:8000"))
    assert pairs.refused == {}
    know(pairs, "d", Role.DECODE)
    assert set(pairs.refused) == {("p", "d")}
