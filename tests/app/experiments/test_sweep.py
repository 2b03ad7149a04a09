"""Sweeps are read, and knees found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.app.experiments.fleet import Size, groups, parse_profiles
from pointsman.app.experiments.plan import Point
from pointsman.app.experiments.sweep import Base, Knee, Sweep, between, knee, parse_sweep
from pointsman.app.simulate.setup import Setup
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.profiles import profile


def base(size: Size | None = None, profiles: str = "tiny", clients: int | None = None) -> Base:
    found, size = parse_profiles(profiles, profile), size or Size(both=8)
    at = Point(Setup(groups=groups(found, size)), rate=2.0, clients=clients)

    def resize(other: Size) -> Point:
        return replace(at, setup=replace(at.setup, groups=groups(found, other)))

    return Base(at, size, resize, requests_s=10.0, mixed_profiles=found.both is None)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("workers=4,8,16", (4, 8, 16)),
        ("workers=16,4,4", (4, 16)),
        ("workers=4..32", (4, 8, 12, 16, 20, 24, 28, 32)),
        ("workers=1..3", (1, 2, 3)),
        ("workers=4..12:4", (4, 8, 12)),
        ("workers=5..5", (5,)),
        ("rate=0.5..2:0.5", (0.5, 1, 1.5, 2)),
        ("rate=.1..0.3:0.1", (0.1, 0.2, pytest.approx(0.3))),
        ("clients=10,20", (10, 20)),
    ],
)
def test_values(text: str, values: tuple[float, ...]) -> None:
    assert parse_sweep(text, base()).values == values


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("workers", "axes are workers, rate, clients, roles"),
        ("gpus=1..4", "axes are workers, rate, clients, roles"),
        ("workers=", "write AXIS=VALUES"),
        ("workers=4..2", "'4..2' is no range"),
        ("workers=0..2", "'0..2' is no range"),
        ("workers=1.5,2", "whole numbers"),
        ("workers=a,b", "'a,b' is no range"),
        ("workers=1..9:0", "is no range"),
        ("rate=-1,2", "is no range"),
        ("rate=1,inf", "is no range"),
        ("rate=1,nan", "is no range"),
        ("workers=1..2000:1", "more than 1,000 points; take longer steps"),
        ("workers=1..100000000:1", "more than 1,000 points"),
        ("roles=1:0", "at least one worker of each role"),
    ],
)
def test_what_is_no_sweep(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=r"^--sweep") as caught:
        parse_sweep(text, base())
    assert part in str(caught.value)


def test_points_of_workers() -> None:
    sweep = parse_sweep("workers=2,4", base())
    assert [(point.name, point.setup.workers, point.rate) for point in sweep.points()] == [
        ("workers=2", 2, 2.0),
        ("workers=4", 4, 2.0),
    ]


def test_points_of_rates() -> None:
    assert [point.rate for point in parse_sweep("rate=1,3", base()).points()] == [2.0, 6.0]
    absolute = parse_sweep("rate=5,30/s", base())
    assert [(point.name, point.rate) for point in absolute.points()] == [("rate=5/s", 0.5), ("rate=30/s", 3.0)]


def test_points_of_roles() -> None:
    sweep = parse_sweep("roles=1:7,4:4,8", base())
    assert [point.name for point in sweep.points()] == ["roles=1:7", "roles=4:4", "roles=8"]
    assert [[group.count for group in point.setup.groups] for point in sweep.points()] == [[1, 7], [4, 4], [8]]
    assert not sweep.ordered


def test_all_splits() -> None:
    assert [point.name for point in parse_sweep("roles=all", base(Size(both=4))).points()] == [
        "roles=1:3",
        "roles=2:2",
        "roles=3:1",
        "roles=4",
    ]
    mixed = base(Size(prefill=1, decode=2), "prefill=tiny,decode=h100/llama-8b")
    assert [point.name for point in parse_sweep("roles=all", mixed).points()] == ["roles=1:2", "roles=2:1"]


def test_axes_that_do_not_go_with_the_rest() -> None:
    with pytest.raises(ConfigError, match="sweep roles="):
        parse_sweep("workers=1..4", base(Size(prefill=1, decode=2)))
    with pytest.raises(ConfigError, match="sweep clients= instead"):
        parse_sweep("rate=1..4", base(clients=3))
    with pytest.raises(ConfigError, match="come at once, so it has no rate"):
        parse_sweep("rate=1,2/s", replace(base(), requests_s=0.0))
    with pytest.raises(ConfigError, match="one worker can't be split"):
        parse_sweep("roles=all", base(Size(both=1)))


RATE = parse_sweep("rate=1,2,3,4", base())
WORKERS = parse_sweep("workers=1,2,3,4", base())


@pytest.mark.parametrize(
    ("sweep", "shares", "found"),
    [
        (RATE, {1: 1.0, 2: 0.99, 3: 0.5, 4: 0.1}, Knee(2, 3)),
        (RATE, {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, Knee(4, None)),
        (RATE, {1: 0.9, 2: 0.9}, Knee(None, 1)),
        (RATE, {1: 1.0, 2: 0.5, 3: 1.0}, Knee(1, 2)),
        (RATE, {}, Knee(None, None)),
        (RATE, {1: 1.0, 2: float("nan")}, Knee(1, 2)),
        (WORKERS, {1: 0.1, 2: 0.5, 3: 0.99, 4: 1.0}, Knee(3, 2)),
        (WORKERS, {1: 1.0, 2: 1.0}, Knee(1, None)),
        (WORKERS, {3: 0.2, 4: 0.5}, Knee(None, 4)),
    ],
)
def test_knees(sweep: Sweep, shares: dict[float, float], found: Knee) -> None:
    assert knee(sweep, shares, 0.99) == found


def test_where_to_look_next() -> None:
    assert between(RATE, [Knee(2, 3), Knee(2, 3), Knee(1, 2), Knee(4, None), Knee(None, 1)]) == [1.5, 2.5]
    assert between(WORKERS, [Knee(8, 4), Knee(3, 2)]) == [6]
