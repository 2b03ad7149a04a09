"""Whatever is damaged in a file, the answer is a deployment or one sentence about what is wrong; never a crash."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman.core.model.errors import ConfigError
from pointsman.edge.manifests.cluster_files import read_cluster
from pointsman.edge.manifests.deployment_file import deployments_of
from pointsman.edge.manifests.dynamo import convert_dynamo
from pointsman.edge.manifests.queue_file import queues_of

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples" / "placement"
JUNK: tuple[Any, ...] = (
    None,
    "",
    "x",
    -1,
    0,
    1e300,
    True,
    [],
    {},
    [None],
    ["x"],
    {"x": None},
    {"x": ["y"]},
    "none",
    2**70,
)

GRAPHS = (
    {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "a", "annotations": {"nvidia.com/kai-scheduler-queue": "q"}, "labels": {"x": "y"}},
        "spec": {
            "priorityClassName": "train",
            "topologyConstraint": {"packDomain": "rack"},
            "services": {
                "Prefill": {
                    "componentType": "worker",
                    "replicas": 2,
                    "multinode": {"nodeCount": 2},
                    "modelRef": {"name": "m"},
                    "scalingAdapter": {"enabled": True},
                    "resources": {
                        "limits": {"gpu": "1", "custom": {"r/x": "1"}},
                        "requests": {"cpu": 1, "memory": "1Gi"},
                    },
                    "extraPodMetadata": {"annotations": {"gpu-fraction": "0.5"}},
                    "extraPodSpec": {
                        "nodeSelector": {"a": "b"},
                        "tolerations": [{"key": "k", "operator": "Exists"}],
                        "affinity": {
                            "nodeAffinity": {
                                "requiredDuringSchedulingIgnoredDuringExecution": {
                                    "nodeSelectorTerms": [
                                        {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
                                    ]
                                }
                            }
                        },
                        "mainContainer": {"args": ["--model", "m"], "resources": {"limits": {"cpu": 2}}},
                        "initContainers": [{"name": "i", "resources": {"requests": {"cpu": 1}}}],
                    },
                }
            },
        },
    },
    {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "a"},
        "spec": {
            "components": [
                {
                    "name": "d",
                    "type": "decode",
                    "replicas": 2,
                    "minAvailable": 1,
                    "podTemplate": {
                        "metadata": {"annotations": {"gpu-memory": "100"}},
                        "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": 1}}}]},
                    },
                }
            ]
        },
    },
    {
        "kind": "DynamoDeployment",
        "metadata": {"name": "a", "annotations": {"kai.scheduler/topology-required-placement": "a/zone"}},
        "spec": {
            "model": "m",
            "prefill": {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}, "nodeSelector": {"a": "b"}},
            "decode": {"replicas": 1, "resources": {"gpu": 1}, "autoscale": {"enabled": True, "minReplicas": 1}},
        },
    },
)
KUBECTL = {
    "kind": "List",
    "items": [
        {
            "kind": "Node",
            "metadata": {"name": "n", "labels": {"nvidia.com/gpu.memory": "80000"}},
            "spec": {"unschedulable": False, "taints": [{"key": "k", "effect": "NoSchedule", "value": "v"}]},
            "status": {
                "allocatable": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
        {
            "kind": "Pod",
            "metadata": {
                "name": "p",
                "namespace": "s",
                "labels": {"runai-gpu-group": "g"},
                "annotations": {"gpu-memory": "100", "gpu-fraction-num-devices": "2"},
            },
            "spec": {
                "nodeName": "n",
                "containers": [{"resources": {"requests": {"cpu": "1"}, "limits": {"memory": 5}}}],
                "initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}}],
                "overhead": {"cpu": 1},
                "resources": {"limits": {"cpu": 1}},
            },
            "status": {"phase": "Running"},
        },
    ],
}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in pairs:
        yield from _places(child, (*path, key))


def _damaged(document: Any, rng: random.Random) -> Iterator[Any]:
    """The document with one value replaced by junk, for every value and every kind of junk; some with two."""
    for path in list(_places(document)):
        for junk in rng.sample(JUNK, 5) if len(path) > 3 else JUNK:
            copy = json.loads(json.dumps(document))
            _put(copy, path, junk)
            if rng.random() < 0.2:
                _put(copy, rng.choice(list(_places(copy))), rng.choice(JUNK))
            yield copy


def _put(document: Any, path: tuple[Any, ...], junk: Any) -> None:
    *above, last = path
    for key in above:
        document = document[key]
    document[last] = json.loads(json.dumps(junk))


def _survives(read: Callable[[str], object], text: str) -> bool:
    """Whether it was read; what is refused is one sentence."""
    try:
        read(text)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("number", range(len(GRAPHS)))
def test_dynamo(number: int) -> None:
    kept = [
        _survives(lambda text: convert_dynamo(text, "f"), json.dumps(each))
        for each in _damaged(GRAPHS[number], random.Random(number))
    ]
    assert any(kept)
    assert not all(kept)


@pytest.mark.parametrize(("name", "read"), [("chat-70b", deployments_of), ("queues", queues_of)])
def test_files_of_ours(name: str, read: Callable[[str, str], object]) -> None:
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    kept = [_survives(lambda text: read(text, "f"), json.dumps(each)) for each in _damaged(document, random.Random(1))]
    assert any(kept)
    assert not all(kept)


@pytest.mark.parametrize("of_kubectl", [False, True])
def test_clusters(of_kubectl: bool, tmp_path: Path) -> None:
    document = KUBECTL if of_kubectl else yaml.safe_load((EXAMPLES / "cluster.yaml").read_text())
    file = tmp_path / "f"

    def read(text: str) -> None:
        file.write_text(text)
        read_cluster([file])

    kept = [_survives(read, json.dumps(each)) for each in list(_damaged(document, random.Random(2)))[::3]]
    assert any(kept)
    assert not all(kept)
