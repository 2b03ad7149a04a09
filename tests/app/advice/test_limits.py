"""How far policies go, against a laboratory whose truth is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pointsman.app.advice import figures
from pointsman.app.advice.fleets import of_size
from pointsman.app.advice.laboratory import Case, Laboratory
from pointsman.app.advice.limits import AS_IT_IS, LOADS, Limit, limits, surely_apart
from pointsman.app.experiments.measures import Kind
from pointsman.core.timing.profiles import profile

FLEET = of_size(profile("h100/llama-8b"), 4)


class _Known:
    """Each policy and seed keeps the SLO up to a load of its own."""

    question = SimpleNamespace(seeds=3, target=0.9)

    def __init__(self, up_to: Mapping[str, tuple[float, ...]]) -> None:
        self.up_to = up_to
        self.asked: list[tuple[Case, int]] = []

    def measure(self, wanted: Iterable[tuple[Case, int]]) -> None:
        self.asked.extend(wanted)

    def metrics(self, case: Case, seed: int) -> dict[str, float]:
        return {"goodput_share": 0.9 if case.rate <= self.up_to[case.policy][seed] else 0.89}


def _loads(**up_to: tuple[float, ...]) -> tuple[dict[str, Limit], _Known]:
    known = _Known(up_to)
    ladders = {name: ([Case(name, FLEET, rate) for rate in LOADS], AS_IT_IS) for name in up_to}
    return limits(cast(Laboratory, known), ladders, lambda case: case.rate), known


def test_loads_have_the_trace_as_it_is_among_them() -> None:
    assert LOADS[AS_IT_IS] == 1
    assert (LOADS[0], LOADS[-1]) == (0.125, 8)
    assert all(1.05 < after / before < 1.11 for before, after in pairwise(LOADS))


def test_each_seed_has_its_limit() -> None:
    found, known = _loads(kv=(2.0, 2.5, 1.99), random=(0.5, 0.5, 0.5))
    assert found["kv"].by_seed == {0: 2.0, 1: 2.33, 2: 1.85}
    assert found["kv"].value == 2.0
    assert found["kv"].known == (1.85, 2.33)
    assert figures.load(found["kv"]) == "×2 (×1.85 to ×2.33 by seed)"
    assert figures.load(found["random"]) == "×0.5"
    assert len(known.asked) < 40


def test_beyond_the_ends_of_the_ladder() -> None:
    found, _ = _loads(kv=(20.0, 20.0, 20.0), random=(0.01, 0.01, 3.0))
    assert found["kv"].at_end
    assert figures.load(found["kv"]) == "more than ×8"
    assert found["random"].value is None
    assert found["random"].known is None
    assert figures.load(found["random"]) == "less than ×0.125"


def test_sizes_are_harder_the_smaller() -> None:
    limit = Limit({0: 5.0, 1: 6.0, 2: 5.0}, hardest=1.0, easiest=16.0)
    assert limit.value == 5
    assert figures.workers(limit) == "5 workers (5 to 6 by seed)"
    assert figures.workers(Limit({0: 1.0, 1: 1.0}, 1.0, 16.0)) == "1 worker"
    nowhere = Limit({0: None, 1: None, 2: 16.0}, 1.0, 16.0)
    assert nowhere.value is None
    assert figures.workers(nowhere) == "more than 16 workers"


@pytest.mark.parametrize(
    ("ours", "theirs", "sure"),
    [
        ((2.0, 2.0, 2.16), (1.0, 1.08, 1.0), True),
        ((2.0, 2.0, 2.0), (2.0, 2.0, 2.0), False),
        ((2.0, 1.0, 2.0), (1.0, 2.0, 1.0), False),
        ((1.08, 1.08, 1.08), (1.0, 1.0, 1.0), False),
        ((2.0, 2.16, 2.0), (None, None, None), True),
        ((0.125, 0.125, 0.125), (None, None, None), False),
    ],
)
def test_limits_are_apart_when_seeds_agree(ours: Any, theirs: Any, sure: bool) -> None:
    first, second = (Limit(dict(enumerate(each)), 8.0, 0.125) for each in (ours, theirs))
    assert surely_apart(first, second, 0.1, Kind.POSITIVE) is sure


def test_one_seed_is_never_sure() -> None:
    assert not surely_apart(Limit({0: 4.0}, 8.0, 0.125), Limit({0: 1.0}, 8.0, 0.125), 0.1, Kind.POSITIVE)
