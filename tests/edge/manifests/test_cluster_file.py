from __future__ import annotations

import numpy as np
import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.placement.cluster import Cluster, ForeignPod, Node, Taint
from pointsman.core.placement.made_cluster import MadeCluster, made_cluster
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.topology import Level, Topology
from pointsman.edge.configuration.nodes import MappingNode, parse_documents
from pointsman.edge.manifests.cluster_file import LoadedCluster, cluster_of, cluster_text


def _read(text: str) -> LoadedCluster:
    (document,) = parse_documents(text, "c.yaml")
    assert isinstance(document, MappingNode)
    return cluster_of(document)


WHOLE = """\
topology:
  - {name: rack, label: x/rack}
  - {name: zone, label: x/zone, cost: 7}
nodes:
  - name: a
    count: 10
    gpus: 8
    gpu: H100
    cpu: 96
    memory: 1Ti
    domains: {rack: 4}
    labels: {x/zone: z1}
    taints: [{key: gpu, value: "yes", effect: NoExecute}]
  - {name: b, count: 2, gpus: 4, domains: {rack: 2}, cordoned: true, ready: false}
  - {name: head, cpu: 500m}
pods:
  - {node: a-01, name: p, namespace: n, gpus: 0.5, cpu: 2, memory: 4Gi, devices: [3]}
"""


def test_all_of_it_is_read() -> None:
    loaded = _read(WHOLE)
    nodes = loaded.cluster.nodes
    assert loaded.topology == Topology((Level("rack", "x/rack"), Level("zone", "x/zone", 7)))
    assert [*[node.name for node in nodes][:2], nodes[9].name, nodes[10].name] == ["a-01", "a-02", "a-10", "b-1"]
    assert [node.labels.get("x/rack") for node in nodes] == ["rack-1"] * 4 + ["rack-2"] * 4 + ["rack-3"] * 2 + [
        "rack-4"
    ] * 2 + [None]
    assert nodes[0].taints == (Taint("gpu", "yes", "NoExecute"),)
    assert (nodes[0].gpus, nodes[0].gpu_kind, nodes[0].cpu_milli, nodes[0].memory_bytes) == (8, "H100", 96_000, 2**40)
    assert (nodes[10].cordoned, nodes[10].ready, nodes[12].cpu_milli) == (True, False, 500)
    assert loaded.cluster.pods == (ForeignPod("p", "n", "a-01", Resources(500, 2000, 4 * 2**30), (3,)),)


def test_without_levels_the_topology_is_not_known() -> None:
    assert _read("nodes: [{name: a}]").topology is None


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_reads_back(seed: int) -> None:
    settings = MadeCluster(40, nodes_per_nvswitch=2, used_share=0.5, cordoned_share=0.1, down_share=0.1)
    cluster, topology = made_cluster(settings, np.random.default_rng(seed))
    loaded = _read(cluster_text(cluster, topology))
    assert (loaded.cluster, loaded.topology) == (cluster, topology)


def test_odd_words_read_back() -> None:
    labels = {"a/b": "yes", "c": "", "d": "1", "e: f": "{x}", "null": "täst"}
    node = Node("12", 2, "none of it", 100, 5, labels, (Taint("k"), Taint("on", "1e3", "PreferNoSchedule")))
    cluster = Cluster((node,), (ForeignPod("true", "off", "12", Resources(500, 1, 1), (1,)),))
    loaded = _read(cluster_text(cluster, Topology((Level("no", "y", 3),))))
    assert loaded.cluster == cluster


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pods: []", "c.yaml:1: nodes is missing; expected a list"),
        ("nodes: []", "c.yaml:1: nodes: is empty; name at least 1"),
        ("nodes:\n  - {name: a, gpu: 8, gpus: many}", "c.yaml:2: nodes[0].gpu: expected text, or none, not 8"),
        ("nodes:\n  - {name: a, gpus: -1}", "c.yaml:2: nodes[0].gpus: expected an integer from 0 to 1024, not -1"),
        ("nodes:\n  - {name: a, memory: lots}", "c.yaml:2: nodes[0].memory: expected an amount of memory"),
        ("nodes:\n  - {name: a, lables: {}}", "c.yaml:2: nodes[0].lables: unknown key; did you mean labels?"),
        ("nodes:\n  - {name: a}\n  - {name: a}", "c.yaml:3: nodes[1].name: there is a node a already; rename one"),
        ("nodes: [{name: a, domains: {rack: 2}}]", "nodes[0].domains.rack: there is no such level; known here: none"),
        ("nodes: [{name: a, taints: [{key: k, effect: No}]}]", "taints[0].effect: expected one of NoSchedule"),
        ("nodes: [{name: a}]\npods:\n  - {node: b}", "c.yaml:3: pods[0].node: there is no node b"),
        ("nodes: [{name: a, gpus: 2}]\npods: [{node: a, devices: [2]}]", "pods[0].devices: node a has 2 GPUs, none"),
        ("topology: [{name: node, label: x}]\nnodes: [{name: a}]", "level 'node' is always there"),
        ("nodes:\n  - {name: a, gpus: .nan}", "c.yaml:2: nodes[0].gpus: expected an integer from 0 to 1024"),
        ("nodes:\n  - {name: a, gpus: 1e3}", "c.yaml:2: nodes[0].gpus: expected an integer from 0 to 1024"),
        ("nodes:\n  - {name: a, count: 0}", "c.yaml:2: nodes[0].count: expected an integer from 1 to 100000"),
        ("nodes:\n  - {name: a, cpu: .inf}", "c.yaml:2: nodes[0].cpu: expected CPUs"),
        ("nodes:\n  - {name: a, cpu: 1e18}", "c.yaml:2: nodes[0].cpu: expected CPUs"),
        ("nodes:\n  - {name: a, memory: -1}", "c.yaml:2: nodes[0].memory: expected an amount of memory"),
        (
            "nodes: [{name: a, domains: {r: 0}}]\ntopology: [{name: r, label: r}]",
            "nodes[0].domains.r: expected",
        ),
        ("nodes: [{name: a, count: 9, memory: 1Ei}]", "memory of all nodes add up to 1e+19 thousandths or bytes"),
        (
            "nodes: [{name: a}]\npods: [" + "{node: a, cpu: 1e15}, " * 5 + "]",
            "of all pods of others add up to 5e+18",
        ),
        (
            "nodes: [{name: a, count: 100000}, {name: b, count: 100000}, {name: c}]",
            "c.yaml:1: nodes: 200,001 nodes together; at most 200,000 are expected",
        ),
        ("topology: [{name: r, label: r, cost: 1e300}]\nnodes: [{name: a}]", "topology[0].cost: expected an integer"),
    ],
)
def test_bad_files_name_line_key_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(text)
    assert message in str(caught.value)
