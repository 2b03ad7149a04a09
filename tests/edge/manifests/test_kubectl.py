from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman.core.model.errors import ConfigError
from pointsman.core.placement.cluster import ForeignPod, Taint
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Level, Topology
from pointsman.edge.manifests.cluster_file import LoadedCluster
from pointsman.edge.manifests.cluster_files import read_cluster, topology_of


def node(name: str = "gpu-1", **over: Any) -> dict[str, Any]:
    """As kubectl prints one, with fields that nobody here reads."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": "u",
            "labels": {"nvidia.com/gpu.product": "H100", "topology.kubernetes.io/zone": "a", **over.get("labels", {})},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"podCIDR": "10.0.0.0/24", **over.get("spec", {})},
        "status": {
            "capacity": {"cpu": "100", "memory": "999Gi", "nvidia.com/gpu": "9"},
            "allocatable": {
                "cpu": "95500m",
                "memory": "1000Gi",
                "nvidia.com/gpu": "8",
                "pods": "110",
                **over.get("allocatable", {}),
            },
            "conditions": over.get(
                "conditions", [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}]
            ),
            "nodeInfo": {"kubeletVersion": "v1.36.2"},
        },
    }


def container(gpus: int = 0, cpu: str = "0", memory: str = "0", **more: Any) -> dict[str, Any]:
    gpu = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "name": "main",
        "image": "x",
        "resources": {"requests": {"cpu": cpu, "memory": memory, **gpu}, "limits": gpu},
        **more,
    }


def pod(name: str = "p", containers: list[dict[str, Any]] | None = None, **over: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": over.get("namespace", "team"),
            "labels": over.get("labels"),
            "annotations": over.get("annotations"),
            "deletionTimestamp": over.get("deleted"),
        },
        "spec": {
            "nodeName": over.get("node", "gpu-1"),
            "containers": containers if containers is not None else [container(2, "4", "8Gi")],
            **over.get("spec", {}),
        },
        "status": {"phase": over.get("phase", "Running")},
    }


def read(tmp_path: Path, *objects: dict[str, Any]) -> LoadedCluster:
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"apiVersion": "v1", "items": objects, "kind": "List", "metadata": {}}, indent=4))
    return read_cluster([file])


def only(loaded: LoadedCluster) -> ForeignPod:
    (found,) = loaded.cluster.pods
    return found


def test_allocatable_counts_not_capacity(tmp_path: Path) -> None:
    (found,) = read(tmp_path, node(), pod()).cluster.nodes
    assert (found.gpus, found.cpu_milli, found.memory_bytes, found.gpu_kind) == (8, 95_500, 1000 * 2**30, "H100")
    assert (found.ready, found.cordoned) == (True, False)


def test_a_node_that_has_just_joined_stops_nothing(tmp_path: Path) -> None:
    for status in ({}, {"conditions": [{"type": "Ready", "status": "False"}]}):
        loaded = read(tmp_path, node(), {**node("new"), "status": status}, pod())
        new = loaded.cluster.nodes[1]
        assert (new.ready, new.gpus, new.cpu_milli) == (False, 0, 0)


def test_taints_cordons_and_readiness(tmp_path: Path) -> None:
    taints = [
        {"key": "gpu", "effect": "NoSchedule"},
        {"key": "t", "value": "v", "effect": "PreferNoSchedule", "timeAdded": "x"},
    ]
    loaded = read(
        tmp_path,
        node("a", spec={"unschedulable": True, "taints": taints}),
        node("b", conditions=[{"type": "Ready", "status": "Unknown"}]),
        node("c", conditions=[]),
        pod(node="a"),
    )
    a, b, c = loaded.cluster.nodes
    assert a.taints == (Taint("gpu"), Taint("t", "v", "PreferNoSchedule"))
    assert (a.cordoned, b.ready, c.ready) == (True, False, False)
    assert "1 node (c) without a Ready condition: counted as down" in loaded.notes


@pytest.mark.parametrize("name", ["amd.com/gpu", "gpu.intel.com/xe", "habana.ai/gaudi", "google.com/tpu"])
def test_gpus_of_other_makers(tmp_path: Path, name: str) -> None:
    asked = container()
    asked["resources"] = {"requests": {name: "3"}, "limits": {name: "3"}}
    loaded = read(tmp_path, node(allocatable={"nvidia.com/gpu": "0", name: "4"}), pod(containers=[asked]))
    assert loaded.cluster.nodes[0].gpus == 4
    assert only(loaded).requests.gpu_milli == 3000


def test_slices_of_gpus_are_named_not_counted(tmp_path: Path) -> None:
    loaded = read(
        tmp_path, node(allocatable={"nvidia.com/mig-1g.10gb": "7"}, labels={"nvidia.com/gpu.replicas": "4"}), pod()
    )
    assert loaded.cluster.nodes[0].gpus == 8
    assert "nvidia.com/mig-1g.10gb on 1 node: not counted as GPUs" in loaded.notes
    assert "1 node (gpu-1) with time-sliced GPUs: every slice counts as a GPU" in loaded.notes


def test_pods_that_ended_hold_nothing_those_being_deleted_do(tmp_path: Path) -> None:
    loaded = read(
        tmp_path,
        node(),
        pod("a", phase="Succeeded"),
        pod("b", phase="Failed"),
        pod("c", deleted="2026-01-01T00:00:00Z"),
    )
    assert only(loaded).name == "c"


def test_pods_without_a_node_are_told(tmp_path: Path) -> None:
    loaded = read(
        tmp_path, node(), pod("a", node=None, phase="Pending"), pod("b", node="gone"), pod("c", phase="Pending")
    )
    assert only(loaded).name == "c"
    assert "1 pod (team/a) without a node: nothing is held for them" in loaded.notes
    assert "1 pod (team/b) on nodes that are not in the files: left out" in loaded.notes


def test_containers_run_together_init_containers_before(tmp_path: Path) -> None:
    spec = {
        "initContainers": [container(4, "1", "1Gi"), container(0, "9", "1Gi")],
        "overhead": {"cpu": "250m", "memory": "1Gi"},
    }
    loaded = read(tmp_path, node(), pod(containers=[container(1, "2", "2Gi"), container(1, "3", "500m")], spec=spec))
    assert only(loaded).requests == Resources(4000, 9250, 3 * 2**30 + 1)


def test_sidecars_stay(tmp_path: Path) -> None:
    sidecar = container(0, "2", "0", restartPolicy="Always")
    spec = {"initContainers": [container(0, "7", "0"), sidecar, container(0, "6", "0")]}
    loaded = read(tmp_path, node(), pod(containers=[container(1, "5", "0")], spec=spec))
    # main 5 + sidecar 2 = 7; first init 7 alone; second init 6 beside the sidecar = 8
    assert only(loaded).requests == Resources(1000, 8000, 0)


def test_requests_of_the_whole_pod_count_instead(tmp_path: Path) -> None:
    spec = {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "5Gi"}}}
    loaded = read(tmp_path, node(), pod(containers=[container(1, "5", "1Gi")], spec=spec))
    assert only(loaded).requests == Resources(1000, 1000, 5 * 2**30)


def test_a_limit_without_a_request_is_one(tmp_path: Path) -> None:
    loaded = read(
        tmp_path, node(), pod(containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 1.5}}}])
    )
    assert only(loaded).requests == Resources(2000, 1500, 0)


def test_parts_of_devices(tmp_path: Path) -> None:
    loaded = read(
        tmp_path,
        node(labels={"nvidia.com/gpu.memory": "80000"}),
        pod("half", [container(0, "1")], annotations={"gpu-fraction": "0.5"}),
        pod("memory", [container(0, "1")], annotations={"gpu-memory": "20000"}),
        pod("two", [container(0, "1")], annotations={"gpu-fraction": "0.3", "gpu-fraction-num-devices": "2"}),
    )
    assert [each.requests.gpu_milli for each in loaded.cluster.pods] == [500, 250, 300, 300]
    assert sum(each.requests.cpu_milli for each in loaded.cluster.pods) == 3000


def test_memory_of_unknown_devices_is_a_whole_one(tmp_path: Path) -> None:
    loaded = read(tmp_path, node(), pod("m", [container()], annotations={"gpu-memory": "20000"}))
    assert only(loaded).requests.gpu_milli == 1000
    assert any(note.startswith("1 pod (team/m) with gpu-memory on nodes without label") for note in loaded.notes)


def test_reserved_devices_are_counted_once_and_groups_are_apart(tmp_path: Path) -> None:
    def reserve(name: str, group: str) -> dict[str, Any]:
        return pod(name, [container(1)], namespace="kai-resource-reservation", labels={"runai-gpu-group": group})

    def share(name: str, group: str, part: str) -> dict[str, Any]:
        return pod(name, [container()], annotations={"gpu-fraction": part}, labels={"runai-gpu-group": group})

    loaded = read(
        tmp_path, node(), reserve("r1", "g1"), reserve("r2", "g2"), reserve("r3", "left-over"),
        share("a", "g1", "0.3"), share("b", "g2", "0.3"), share("c", "g1", "0.6"),
    )  # fmt: skip
    state = ClusterState.of(loaded.cluster, Topology())
    assert sorted(state.device_free_milli[0].tolist()) == [0, 100, 700, 1000, 1000, 1000, 1000, 1000]
    assert state.overcommitted == ()


def test_two_files_and_yaml(tmp_path: Path) -> None:
    nodes, pods, more = tmp_path / "nodes.json", tmp_path / "pods.json", tmp_path / "one.yaml"
    nodes.write_text(json.dumps({"kind": "NodeList", "items": [{k: v for k, v in node().items() if k != "kind"}]}))
    pods.write_text(json.dumps({"kind": "List", "items": [pod("a")]}))
    more.write_text(yaml.safe_dump(pod("b")) + "---\n" + yaml.safe_dump({"kind": "List", "items": [pod("c")]}))
    assert [each.name for each in read_cluster([nodes, pods, more]).cluster.pods] == ["a", "b", "c"]


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
def test_a_null_is_as_if_it_were_not_there(tmp_path: Path, write: Any) -> None:
    bare = node(spec={"unschedulable": None, "taints": [{"key": "k", "effect": "NoSchedule", "value": None}]})
    held = pod(containers=[container(2, resources=None), container(3)])
    held["metadata"]["namespace"] = held["spec"]["initContainers"] = held["spec"]["overhead"] = None
    ended = {**pod("other"), "spec": None, "status": None}
    file = tmp_path / "all"
    file.write_text(write({"kind": "List", "apiVersion": "v1", "items": [bare, held, ended]}))
    loaded = read_cluster([file])
    (found,) = loaded.cluster.nodes
    assert (found.cordoned, found.taints) == (False, (Taint("k"),))
    assert only(loaded).requests.gpu_milli == 3000
    assert only(loaded).namespace == "default"


def test_times_without_quotes_in_yaml(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    text = yaml.safe_dump({"kind": "List", "items": [node(), pod(containers=[container(2)])]})
    file.write_text(
        text.replace("metadata:\n    name: p", "metadata:\n    deletionTimestamp: 2026-01-01T00:00:00Z\n    name: p")
    )
    assert "deletionTimestamp" in file.read_text()
    assert only(read_cluster([file])).requests.gpu_milli == 2000


def test_levels_given_or_found_by_the_usual_labels(tmp_path: Path) -> None:
    loaded = read(tmp_path, node(labels={"topology.kubernetes.io/rack": "r1"}), pod())
    assert loaded.topology is not None
    assert loaded.topology.names == ("node", "rack", "zone")
    assert (
        "levels by labels of the nodes: topology.kubernetes.io/rack=rack, topology.kubernetes.io/zone=zone"
        in loaded.notes
    )
    given = read_cluster([tmp_path / "all.json"], topology_of("x/y=block,topology.kubernetes.io/zone"))
    assert given.topology == Topology((Level("block", "x/y"), Level("zone", "topology.kubernetes.io/zone")))
    assert "label x/y is on no node: no domains at its level" in given.notes


def test_nodes_with_gpus_that_lack_the_label_of_a_level_are_told(tmp_path: Path) -> None:
    rack = {"labels": {"topology.kubernetes.io/rack": "r1"}}
    items = [
        node("a", **rack),
        node("b"),
        node("c"),
        node("d", **rack),
        node("cpu", allocatable={"nvidia.com/gpu": "0"}),
    ]
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    note = (
        "label topology.kubernetes.io/rack is missing on 2 nodes with GPUs (b, c): in no rack, so nothing that has to "
        "be in one goes there"
    )
    assert note in read_cluster([file]).notes
    assert not any(
        "is missing on" in each for each in read_cluster([file], topology_of("topology.kubernetes.io/zone")).notes
    )
    ours = tmp_path / "ours.yaml"
    ours.write_text(
        "topology: [{name: rack, label: r}]\nnodes: [{name: a, gpus: 8, labels: {r: x}}, {name: b, gpus: 8}]\n"
    )
    assert [each.partition(" (")[0] for each in read_cluster([ours]).notes] == [
        "label r is missing on 1 node with GPUs"
    ]


@pytest.mark.parametrize("text", ["", "=rack", "a=", "a=x,b=x", "a=node", "a=x,,b=y"])
def test_bad_levels(text: str) -> None:
    with pytest.raises(ConfigError, match="--topology"):
        topology_of(text)


def test_other_objects_are_told(tmp_path: Path) -> None:
    loaded = read(tmp_path, node(), {"kind": "Service", "metadata": {"name": "s"}})
    assert "objects that are neither nodes nor pods are left out: Service (1)" in loaded.notes
    assert any(note.startswith("there are no pods in the files") for note in loaded.notes)


def _wrong(change: Any) -> dict[str, Any]:
    made = node()
    change(made)
    return made


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        (
            _wrong(lambda n: n["status"]["allocatable"].update(memory="1 lot")),
            "items[1].status.allocatable.memory",
            "expected a quantity such as 8, 500m or 64Gi, not '1 lot'",
        ),
        (
            _wrong(lambda n: n["spec"].update(unschedulable="yes")),
            "items[1].spec.unschedulable",
            "expected `bool`, got `str`",
        ),
        (_wrong(lambda n: n["status"].pop("allocatable")), "items[1].status", "allocatable is missing"),
        (
            _wrong(lambda n: n["spec"].update(taints=[{"key": "a", "effect": "No"}])),
            "items[1].spec.taints[0].effect",
            "'No'",
        ),
        (_wrong(lambda n: n["metadata"].update(name="first")), "items[1].metadata.name", "node first is there twice"),
        (pod("first-pod"), "items[1].metadata.name", ""),
        (
            pod(containers=[container(1, "x")], node="first"),
            "items[1].spec.containers[0].resources.requests.cpu",
            "not 'x'",
        ),
        (
            pod(annotations={"gpu-fraction": "1.5"}, containers=[container()], node="first"),
            "items[1].metadata.annotations.gpu-fraction",
            "a part of a GPU above 0, at most 1",
        ),
    ],
)
@pytest.mark.parametrize("as_yaml", [False, True])
def test_bad_values_name_file_line_and_field(
    tmp_path: Path, wrong: dict[str, Any], field: str, message: str, as_yaml: bool
) -> None:
    items = [node("first"), wrong, pod("first-pod", namespace="team", node="first")]
    document = {"items": items, "kind": "List"}
    text = yaml.safe_dump(document) if as_yaml else json.dumps(document, indent=2)
    file = tmp_path / "c.txt"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_cluster([file])
    told = str(caught.value)
    if wrong["metadata"]["name"] == "first-pod":
        assert "items[2].metadata.name: pod team/first-pod is there twice" in told
        field = "items[2].metadata.name"
    assert f": {field}: " in told
    assert message in told
    assert told.startswith(f"{file}:")
    line = text.splitlines()[int(told.removeprefix(f"{file}:").partition(":")[0]) - 1]
    assert field.rpartition(".")[2].partition("[")[0] in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"kind": "List", "items": []}',
            "there are no nodes; expected what `kubectl get nodes,pods -A -o json` prints",
        ),
        ('{"kind": "List", "items": [', "this is no valid JSON"),
        ('{"kind": "List", "items": [3]}', "c.json:1: items[0]: expected `object`, got `int`"),
        ("[1]", "expected one cluster, with keys nodes, topology, pods"),
        ("", "expected one cluster"),
    ],
)
def test_files_that_are_no_clusters(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_cluster([file])
    assert message in str(caught.value)


def test_our_file_is_not_put_together_with_others(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "c.yaml", tmp_path / "n.json"
    ours.write_text("nodes: [{name: a}]")
    theirs.write_text(json.dumps(node()))
    with pytest.raises(ConfigError, match="give one cluster file alone"):
        read_cluster([theirs, ours])


@pytest.mark.skipif(
    "POINTSMAN_DATA" not in os.environ, reason="needs POINTSMAN_DATA: recorded answers of an API server"
)
def test_objects_of_a_real_api_server(tmp_path: Path) -> None:
    recorded = json.loads((Path(os.environ["POINTSMAN_DATA"]) / "kubernetes" / "apiserver-1.36.2.json").read_text())
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("kind") in ("Node", "Pod") and "metadata" in value and "name" in value["metadata"]:
                found[value["kind"], value["metadata"]["name"]] = value
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(recorded)
    objects = [each for (kind, _), each in found.items() if kind == "Pod" or "allocatable" in each.get("status", {})]
    assert any(each["kind"] == "Pod" for each in objects)
    loaded = read(tmp_path, node("certain"), *objects)
    assert loaded.cluster.nodes
