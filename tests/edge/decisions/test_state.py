"""A packed state decides again as the fleet did; older, newer and damaged ones are read or refused in words."""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.outlook import Outlook
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import Column, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.edge.decisions.state import StateError, unpack_state
from support.decisions import SEED, busy_view, decided, request, same_arrays, times_of


def changed(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    """The text with something else in it."""
    content = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(text)))
    change(content)
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(content))).decode()


@pytest.mark.parametrize("policy", PolicyRegistry().names())
def test_each_policy_decides_the_same_again(policy: str) -> None:
    for number in range(20):
        view = dataclasses.replace(busy_view(6, number), outlook=Outlook(77.5, 3.0, 0.25, 9.0, 80.0))
        record = decided(request(f"pm-1-{number}"), policy, view)
        recorded = unpack_state(record.packed_state())
        again = recorded.decide(PolicyRegistry().get(policy))
        assert record.decision is not None
        assert again.plan == record.decision.plan
        assert again.scores.tolist() == record.decision.scores.tolist()
        assert again.candidates() == record.decision.candidates()
        assert again.at_ms == record.decision.at_ms
        assert (recorded.policy, recorded.worker, recorded.ignored) == (
            record.decision.policy,
            again.worker,
            (),
        )


def test_all_that_a_policy_can_see_comes_back() -> None:
    asked = request(
        sequences=3, streamed=False, tenant="team", api="chat", max_output_tokens=64, slo=Slo(200.0, None, "fast"),
        pinned_worker=WorkerId("gpu-1/0"),
    )  # fmt: skip
    view = dataclasses.replace(busy_view(), guards_lifted=True)
    times = times_of(view)
    recorded = unpack_state(decided(asked, view=view, times=times).packed_state())
    assert recorded.request == asked
    assert recorded.view.workers == view.workers
    assert np.array_equal(recorded.view.table, view.table)
    assert recorded.view.table.dtype == np.int64
    assert (recorded.view.outlook, recorded.view.guards_lifted) == (view.outlook, True)
    assert same_arrays(recorded.times, times.rows(view.workers))
    assert same_arrays(recorded.timing.rows(view.workers), times.rows(view.workers))
    assert set(recorded.timing) == set(times)
    for worker, known in times.items():
        found = recorded.timing[worker]
        assert found.step.c_ms_per_1000_context_tokens == pytest.approx(
            known.step.c_ms_per_1000_context_tokens, rel=1e-15
        )
        assert (found.overhead_ms, found.ttft_ratios, found.step_ratios) == (1.5, (0.9, 2.1), (1.1, 1.7))
    assert (recorded.now_ms, recorded.seed) == (102.0, SEED)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_any_number_is_kept(values: list[int]) -> None:
    view = FleetView.of([f"w{i}/0" for i in range(len(values))], kv_tokens=values)
    assert unpack_state(decided(policy="random", view=view).packed_state()).view.table.tolist() == view.table.tolist()


def test_prompts_and_keys_of_blocks_are_not_in_it() -> None:
    record = decided()
    content = zlib.decompress(base64.b64decode(record.packed_state()))
    assert b"blocks" not in content


def test_what_an_older_version_did_not_have_is_at_its_usual_value() -> None:
    def older(content: dict[str, Any]) -> None:
        for name in ("GPU_USE_PERMILLE", "WEIGHT_PERMILLE", "JOINED_MS", "RUNNING"):
            del content["columns"][name]
        del content["times"]["ttft_p90"], content["times"]["q"]
        del content["outlook"]["reuse"]

    recorded = unpack_state(changed(decided().packed_state(), older))
    assert recorded.view.column(Column.GPU_USE_PERMILLE).tolist() == [-1] * 4
    assert recorded.view.column(Column.WEIGHT_PERMILLE).tolist() == [1000] * 4
    assert recorded.view.column(Column.JOINED_MS).tolist() == [-1] * 4
    assert recorded.view.column(Column.RUNNING).tolist() == [0] * 4
    assert recorded.times.ttft_p90.tolist() == [1.0] * 4
    assert recorded.times.q.tolist() == [0.0] * 4
    assert recorded.view.outlook.reuse == Outlook().reuse
    assert recorded.decide(PolicyRegistry().get("kv")).worker is not None


def test_what_a_newer_version_added_is_left_out_and_named() -> None:
    def newer(content: dict[str, Any]) -> None:
        content["columns"]["MOOD"] = b""
        content["times"]["e"] = b"12345678"
        content["outlook"]["weather"] = 3.0
        content["more"] = [1]

    assert unpack_state(changed(decided().packed_state(), newer)).ignored == ("MOOD", "e", "weather")


def _short(content: dict[str, Any]) -> None:
    content["columns"]["RUNNING"] = b"\0" * 16


def _odd(content: dict[str, Any]) -> None:
    content["times"]["a"] = b"\0" * 15


def _later(content: dict[str, Any]) -> None:
    content["version"] = 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no state of the fleet was recorded"),
        ("%%%", "a damaged packed state: "),
        (base64.b64encode(b"nothing").decode(), "a damaged packed state: "),
        (base64.b64encode(zlib.compress(b"\xc1")).decode(), "a damaged packed state: "),
        (decided().packed_state()[:400], "a damaged packed state: "),
        (changed(decided().packed_state(), _short), "a damaged packed state: RUNNING: 2 values for 4 workers"),
        (changed(decided().packed_state(), _odd), "a damaged packed state: "),
        (changed(decided().packed_state(), _later), "a packed state of version 2; this version of pointsman reads 1"),
    ],
)
def test_what_is_no_state_is_refused(text: str, message: str) -> None:
    with pytest.raises(StateError) as caught:
        unpack_state(text)
    assert str(caught.value).startswith(message)


def test_a_small_text_can_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.edge.decisions.state._MOST_BYTES", 10_000)
    with pytest.raises(StateError, match="larger than any can be"):
        unpack_state(base64.b64encode(zlib.compress(b"\0" * 1_000_000)).decode())
