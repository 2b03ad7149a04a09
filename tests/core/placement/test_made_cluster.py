from __future__ import annotations

import numpy as np
import pytest

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.made_cluster import MadeCluster, made_cluster
from pointsman.core.placement.state import ClusterState


def test_domains_nest() -> None:
    cluster, topology = made_cluster(MadeCluster(130, nodes_per_nvswitch=4), np.random.default_rng(0))
    state = ClusterState.of(cluster, topology)
    assert topology.names == ("node", "nvswitch", "rack", "zone")
    assert [len(names) for names in state.domains.names] == [130, 33, 17, 3, 1]


def test_use_is_as_asked_and_never_more_than_there_is() -> None:
    settings = MadeCluster(50, used_share=0.6, cordoned_share=0.1, down_share=0.04)
    cluster, topology = made_cluster(settings, np.random.default_rng(1))
    state = ClusterState.of(cluster, topology)
    assert state.gpu_free_milli.sum() == 1000 * 50 * 8 * 0.4
    assert state.overcommitted == ()
    assert sum(node.cordoned for node in cluster.nodes) == 5
    assert sum(not node.ready for node in cluster.nodes) == 2


def test_a_rack_has_one_kind() -> None:
    settings = MadeCluster(400, kinds=(("H100", 3), ("A100", 1)))
    cluster, _ = made_cluster(settings, np.random.default_rng(2))
    kinds: dict[str, set[str | None]] = {}
    for node in cluster.nodes:
        kinds.setdefault(node.labels["topology.kubernetes.io/rack"], set()).add(node.gpu_kind)
    assert all(len(found) == 1 for found in kinds.values())
    assert {kind for found in kinds.values() for kind in found} == {"H100", "A100"}


def test_the_same_seed_makes_the_same() -> None:
    settings = MadeCluster(20, used_share=0.5)
    one, other = (made_cluster(settings, np.random.default_rng(3)) for _ in range(2))
    assert one == other


def test_a_full_cluster_can_be_made() -> None:
    cluster, topology = made_cluster(MadeCluster(3, used_share=1), np.random.default_rng(4))
    assert ClusterState.of(cluster, topology).gpu_free_milli.sum() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"used_share": 1.5},
        {"kinds": ()},
        {"kinds": (("A", 0.0),)},
        {"kinds": (("A", 1.0), ("A", 2.0))},
        {"nodes_per_nvswitch": 3},
        {"memory_bytes_per_gpu": 10**18},
        {"cpu_milli_per_gpu": 10**18},
        {"cpu_milli_per_gpu": -1},
        {"kinds": (("A", float("nan")),)},
        {"kinds": (("A", 1e308), ("B", 1e308))},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PlacementError, match=r"expected|weight|any machine"):
        MadeCluster(**{"nodes": 8, **wrong})  # type: ignore[arg-type]
