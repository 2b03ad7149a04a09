from __future__ import annotations

import pytest

from pointsman.edge.cluster.topology import topology_distance

LEVELS = ("host", "rack", "zone")


@pytest.mark.parametrize(
    ("here", "there", "distance"),
    [
        ({"host": "h1", "rack": "r1", "zone": "a"}, {"host": "h1", "rack": "r1", "zone": "a"}, 0),
        ({"host": "h1", "rack": "r1", "zone": "a"}, {"host": "h2", "rack": "r1", "zone": "a"}, 1),
        ({"host": "h1", "rack": "r1", "zone": "a"}, {"host": "h2", "rack": "r2", "zone": "a"}, 2),
        ({"rack": "r1", "zone": "a"}, {"rack": "r1", "zone": "b"}, 3),
        ({"zone": "a"}, {"host": "h2", "zone": "a"}, 0),
        ({}, {"zone": "a"}, 0),
        ({"zone": "a"}, {}, 0),
    ],
)
def test_the_farthest_level_that_differs_counts_and_the_unknown_never(here, there, distance) -> None:
    assert topology_distance(LEVELS, here, there) == distance
    assert topology_distance(LEVELS, there, here) == distance
    assert topology_distance((), here, there) == 0
