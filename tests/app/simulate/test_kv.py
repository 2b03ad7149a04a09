"""What is told of links before a simulation begins, and of shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.app.simulate.kv import MEASURED_BYTES, MOST_MEASURED, kv_shape, link_network, machine, measurements
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.kv_shape import mismatch
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.worker import Role, worker_id
from pointsman.core.timing.link_times import SIZE_CLASSES_BYTES, size_class
from pointsman.core.timing.links import Link
from pointsman.core.timing.profiles import profile

LLAMA = profile("h100/llama-8b")
GROUP = WorkerGroup(LLAMA, 3)
NEAR, FAR = Link("near", 100.0, 0.1), Link("far", 1.0, 5.0)
SETUP = Setup((GROUP,), kv_transfer=TransferMode.AUTO, link=FAR, links_between={(0, 1): NEAR})
WORKERS = [worker_id(f"w{number}") for number in range(3)]


def test_each_pair_is_measured_in_both_directions_and_each_class_of_size() -> None:
    told = list(measurements(SETUP, link_network(SETUP, [GROUP] * 3), WORKERS, 7.0))
    assert len(told) == 6 * len(MEASURED_BYTES)
    assert {size_class(size) for size in MEASURED_BYTES} == set(range(len(SIZE_CLASSES_BYTES) + 1))
    took_ms = {(each.source, each.target): each.took_ms for each in told if each.size_bytes == 64 << 20}
    assert took_ms["w0", "w1"] == pytest.approx(NEAR.transfer_ms(64 << 20))
    assert took_ms["w1", "w0"] == pytest.approx(FAR.transfer_ms(64 << 20))
    assert {each.at_ms for each in told} == {7.0}


def test_what_is_believed_may_be_wrong() -> None:
    setup = replace(SETUP, believed_speed=0.5)
    told = measurements(setup, link_network(setup, [GROUP] * 3), WORKERS, 0.0)
    took_ms = next(each.took_ms for each in told if (each.source, each.size_bytes) == ("w1", 64 << 20))
    assert took_ms == pytest.approx(FAR.floor_ms + 2 * (FAR.transfer_ms(64 << 20) - FAR.floor_ms))


@pytest.mark.parametrize(
    "setup", [replace(SETUP, believed_speed=None), replace(SETUP, kv_transfer=TransferMode.OFF), Setup((GROUP,))]
)
def test_nothing_is_told_where_nobody_measured_or_nothing_moves(setup: Setup) -> None:
    assert not list(measurements(setup, link_network(setup, [GROUP] * 3), WORKERS, 0.0))


def test_the_pairs_of_large_fleets_are_left_to_transfers() -> None:
    many = [worker_id(f"w{number}") for number in range(MOST_MEASURED + 1)]
    setup = replace(SETUP, groups=(WorkerGroup(LLAMA, len(many)),))
    assert not list(measurements(setup, link_network(setup, [GROUP] * len(many)), many, 0.0))
    assert machine(many[-1]) == f"w{MOST_MEASURED}"


def test_workers_of_a_model_match_unless_their_kv_has_another_size() -> None:
    other = WorkerGroup(replace(LLAMA, kv_bytes_per_token=65_536, tensor_parallel=2), 1)
    one, two = (kv_shape(SETUP, group, 16) for group in (GROUP, other))
    assert one is not None
    assert two is not None
    assert mismatch(one, one) is None
    assert "KV bytes a token differ" in (mismatch(one, two) or "")
    assert kv_shape(Setup((GROUP,)), GROUP, 16) is None


@pytest.mark.parametrize(
    ("roles", "asked", "mode"),
    [
        ((Role.BOTH,), None, TransferMode.OFF),
        ((Role.PREFILL, Role.DECODE), None, TransferMode.AUTO),
        ((Role.PREFILL, Role.DECODE), TransferMode.OFF, TransferMode.OFF),
        ((Role.BOTH,), TransferMode.ALWAYS, TransferMode.ALWAYS),
    ],
)
def test_kv_moves_by_default_where_some_only_prefill(
    roles: tuple[Role, ...], asked: TransferMode | None, mode: TransferMode
) -> None:
    assert Setup(tuple(WorkerGroup(LLAMA, 1, role) for role in roles), kv_transfer=asked).transfer.mode is mode


@pytest.mark.parametrize("bad", [{"believed_speed": 0.0}, {"kv_transfer_max_bytes": -1}])
def test_what_can_not_be_is_named(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        replace(SETUP, **bad)  # type: ignore[arg-type]
