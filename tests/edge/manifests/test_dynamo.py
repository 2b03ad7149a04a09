from __future__ import annotations

import pytest
import yaml

from pointsman.core.model.errors import ConfigError
from pointsman.core.placement.cluster import Toleration
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.resources import Resources
from pointsman.edge.manifests.deployment_file import deployments_of
from pointsman.edge.manifests.dynamo import Converted, convert_dynamo

V1ALPHA1 = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata:
  name: disagg
  namespace: serving
  annotations: {nvidia.com/kai-scheduler-queue: team-a, nvidia.com/enable-grove: "true"}
spec:
  backendFramework: vllm
  priorityClassName: inference
  topologyConstraint: {topologyProfile: dc, packDomain: zone}
  services:
    Frontend:
      componentType: frontend
      replicas: 1
      resources: {requests: {cpu: "4", memory: 8Gi}, limits: {cpu: "8", memory: 16Gi}}
    PrefillWorker:
      componentType: worker
      subComponentType: prefill
      replicas: 2
      envFromSecret: token
      resources: {limits: {gpu: "4", custom: {rdma/ib: "4"}}}
      topologyConstraint: {packDomain: rack}
      autoscaling: {enabled: true, minReplicas: 1, maxReplicas: 9}
      extraPodSpec:
        nodeSelector: {pool: gpu}
        tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule, tolerationSeconds: 3}]
        mainContainer:
          image: x
          args: [--model, org/model-70b, --tp, "4"]
          resources: {requests: {cpu: 10}}
    DecodeWorker:
      componentType: worker
      replicas: 3
      multinode: {nodeCount: 2}
      topologyConstraint: {packDomain: host}
      resources: {limits: {gpu: "8"}}
      scalingAdapter: {enabled: true}
    Planner:
      componentType: planner
      replicas: 0
      colour: blue
"""

V1BETA1 = """\
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: graph}
spec:
  components:
    - name: frontend
      type: frontend
    - name: p
      type: prefill
      replicas: 4
      minAvailable: 2
      scalingAdapter: {}
      modelRef: {name: org/model}
      podTemplate:
        metadata: {annotations: {gpu-fraction: "0.5"}}
        spec:
          runtimeClassName: nvidia
          initContainers: [{name: fetch, resources: {requests: {cpu: 6}}}]
          containers: [{name: main, image: x, resources: {limits: {cpu: 4, memory: 10Gi}}}]
          affinity:
            nodeAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                nodeSelectorTerms:
                  - matchExpressions: [{key: gpu, operator: In, values: [a, b]}, {key: fast, operator: Exists}]
            podAntiAffinity: {}
    - name: d
      type: decode
      replicas: 2
      minAvailable: 2
      podTemplate: {spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 8}}}]}}
  experimental: {kvTransferPolicy: {domain: rack, enforcement: preferred}}
"""

FLAT = """\
apiVersion: dynamo.ai/v1
kind: DynamoDeployment
metadata:
  name: flat
  annotations:
    kai.scheduler/topology-required-placement: topology.kubernetes.io/zone
    kai.scheduler/topology-preferred-placement: rack
spec:
  model: org/model
  prefill:
    replicas: 2
    resources: {limits: {nvidia.com/gpu: 4}}
  decode:
    replicas: 3
    resources: {gpu: 2, cpu: 8, memory: 64Gi}
    autoscale: {enabled: true, minReplicas: 2, maxReplicas: 6, targetGPUUtilization: 80}
"""


def _one(text: str) -> tuple[Converted, Gang]:
    (converted,) = convert_dynamo(text, "f.yaml")
    (deployment,) = deployments_of(converted.text, "made")
    return converted, deployment.gang


def _notes(converted: Converted) -> list[str]:
    return [f"{note.path}: {note.text}" for note in converted.notes]


def test_v1alpha1() -> None:
    converted, gang = _one(V1ALPHA1)
    frontend, prefill, decode = gang.groups
    assert (gang.name, gang.queue, gang.priority, gang.preemptible, gang.required) == (
        "disagg",
        "team-a",
        125,
        False,
        "zone",
    )
    assert yaml.safe_load(converted.text)["model"] == "org/model-70b"
    assert frontend.requests == Resources(0, 4000, 8 * 2**30)
    assert prefill.requests == Resources(4000, 10_000, 0)
    assert (prefill.stage, prefill.min_replicas, prefill.max_replicas, prefill.required) == ("prefill", 2, 2, "rack")
    assert prefill.selector == {"pool": ("gpu",)}
    assert prefill.tolerations == (Toleration("nvidia.com/gpu", "", "NoSchedule", True),)
    assert (decode.pods_per_replica, decode.stage, decode.replica_required, decode.required) == (
        2,
        "decode",
        "node",
        None,
    )
    notes = _notes(converted)
    services = "spec.services"
    assert any(note.startswith(f"{services}.PrefillWorker.autoscaling: left out: Dynamo ignores it") for note in notes)
    assert any(note.startswith(f"{services}.DecodeWorker.scalingAdapter: left out: its scaler") for note in notes)
    assert f"{services}.DecodeWorker: taken for decode, by its name" in notes
    assert f"{services}.Planner.replicas: 0: role Planner is left out; it has no pods" in notes
    assert f"{services}.Planner.colour: left out: there is nothing like it here" in notes
    assert f"{services}.PrefillWorker.envFromSecret: left out: it has no part in placement" in notes
    assert any(note.startswith(f"{services}.DecodeWorker.replicas: all 3 are the floor here") for note in notes)


def test_v1beta1() -> None:
    converted, gang = _one(V1BETA1)
    frontend, prefill, decode = gang.groups
    assert (frontend.min_replicas, frontend.requests) == (1, Resources())
    assert prefill.requests == Resources(500, 6000, 10 * 2**30)
    assert (prefill.min_replicas, prefill.max_replicas, prefill.stage) == (2, 4, "prefill")
    assert prefill.selector == {"gpu": ("a", "b"), "fast": ()}
    assert (decode.min_replicas, decode.max_replicas, decode.requests.gpu_milli) == (2, 2, 8000)
    notes = _notes(converted)
    assert any("podAntiAffinity: left out: say topology or near instead" in note for note in notes)
    assert any("scalingAdapter: left out" in note for note in notes)
    assert any("kvTransferPolicy: of the router" in note for note in notes)
    assert "org/model" in converted.text


def test_the_flat_form() -> None:
    converted, gang = _one(FLAT)
    prefill, decode = gang.groups
    assert (gang.required, gang.preferred) == ("zone", "rack")
    assert (prefill.min_replicas, prefill.max_replicas, prefill.requests.gpu_milli) == (2, 2, 4000)
    assert (decode.min_replicas, decode.max_replicas, decode.requests) == (2, 6, Resources(2000, 8000, 64 * 2**30))
    notes = _notes(converted)
    assert any("autoscale.targetGPUUtilization: left out: decode GPUs look busy at any load" in note for note in notes)
    assert "spec.decode.replicas: 3 is where it starts; the floor is autoscale's 2, the most 6" in notes


def test_an_autoscaler_that_is_off() -> None:
    converted, gang = _one(FLAT.replace("enabled: true", "enabled: false"))
    assert (gang.groups[1].min_replicas, gang.groups[1].max_replicas) == (3, 3)
    assert any("autoscale.enabled: false" in note for note in _notes(converted))


def test_what_is_left_out_stands_in_the_file() -> None:
    converted, _ = _one(V1ALPHA1)
    comments = [line for line in converted.text.splitlines() if line.startswith("#")]
    assert len(comments) == 1 + 2 + len(converted.notes)
    assert "#   spec.backendFramework" in comments


def test_every_key_is_used_or_told() -> None:
    """Nothing is dropped in silence: a key that is added anywhere appears in the notes."""
    for text in (V1ALPHA1, V1BETA1, FLAT):
        document = yaml.safe_load(text)
        places = [(document, "")]
        while places:
            mapping, path = places.pop()
            if path != "spec.services":
                mapping["addedKey"] = "x"
            told = " ".join(note.path for note in convert_dynamo(yaml.safe_dump(document), "f")[0].notes)
            ancestors = [path[: i or None] for i in (*(n for n, c in enumerate(path) if c in ".["), 0)]
            assert (
                path == "spec.services"
                or "addedKey" in told
                or any(f"{each} " in f"{told} " for each in ancestors if each)
            ), path
            mapping.pop("addedKey", None)
            for key, value in mapping.items():
                if key in (
                    "labels",
                    "annotations",
                    "nodeSelector",
                    "custom",
                    "requests",
                    "limits",
                    "mainContainer",
                    "resources",
                    "template",
                ):
                    continue
                if key in ("podTemplate", "metadata") and path:
                    continue
                below = f"{path}.{key}".lstrip(".")
                if isinstance(value, dict) and key not in ("autoscaling", "kvTransferPolicy"):
                    places.append((value, below))
                elif key == "components":
                    places += [(each, f"{below}[{i}]") for i, each in enumerate(value)]


def test_other_documents_are_told() -> None:
    secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
    one, other = convert_dynamo(FLAT + secret + "---\n" + FLAT.replace("name: flat", "name: flat-2"), "f.yaml")
    assert (one.name, other.name) == ("flat", "flat-2")
    assert "Secret: left out: no deployment" in _notes(one)


def test_what_kubectl_lists_is_taken_one_by_one() -> None:
    items = [yaml.safe_load(V1ALPHA1), yaml.safe_load(V1BETA1), {"apiVersion": "v1", "kind": "Secret"}]
    listed = {"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}}
    one, other = convert_dynamo(yaml.safe_dump(listed), "f.yaml")
    assert (one.name, other.name) == ("disagg", "graph")
    assert "Secret: left out: no deployment" in _notes(one)


WORKER = """\
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: graph, annotations: {kai.scheduler/topology-required-placement: "", kai.scheduler/queue: ""}}
spec:
  components:
    - name: d
      type: decode
      podTemplate:
        spec:
          nodeSelector: {node-role.kubernetes.io/gpu: "", gpu: H100}
          affinity:
            nodeAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                nodeSelectorTerms: [{matchExpressions: [EXPRESSION]}]
          tolerations: [{key: gpu, operator: Equal, value: "", effect: NoSchedule}, {operator: Exists}]
          containers: [{name: main, command: [sh, -c, "serve COMMAND"], resources: {limits: {nvidia.com/gpu: 8}}}]
"""


def test_labels_taints_and_annotations_without_a_value() -> None:
    _, gang = _one(WORKER.replace("EXPRESSION", "{key: gpu, operator: Exists}"))
    (decode,) = gang.groups
    assert decode.selector == {"node-role.kubernetes.io/gpu": ("",), "gpu": ("H100",)}
    assert decode.tolerations == (Toleration("gpu", "", "NoSchedule"), Toleration(exists=True))
    assert (gang.queue, gang.required) == ("default", None)


def test_node_selector_and_affinity_hold_both() -> None:
    _, gang = _one(WORKER.replace("EXPRESSION", "{key: gpu, operator: In, values: [A100, H100]}"))
    assert gang.groups[0].selector["gpu"] == ("H100",)
    with pytest.raises(ConfigError, match=r"f:14: .*nodeSelectorTerms: gpu is 'H100' by nodeSelector; no node is both"):
        convert_dynamo(WORKER.replace("EXPRESSION", "{key: gpu, operator: In, values: [A100]}"), "f")


@pytest.mark.parametrize("expression", ["{key: gpu, operator: In}", "{key: gpu, operator: Exists, values: [A]}"])
def test_an_affinity_that_says_nothing_clear_is_told(expression: str) -> None:
    converted, gang = _one(WORKER.replace("EXPRESSION", expression))
    assert gang.groups[0].selector["gpu"] == ("H100",)
    assert any("nodeSelectorTerms: left out: only one term" in note for note in _notes(converted))


@pytest.mark.parametrize(
    ("command", "model"),
    [
        ("--model-path /cache/r1 --served-model-name org/r1", "org/r1"),
        ("--served-model-name=org/r1 --model other", "org/r1"),
        ("--model $MODEL --model-path org/path", "org/path"),
        ("--model a --model b", "a"),
        ("--model $MODEL", None),
    ],
)
def test_the_model_is_what_clients_call_it_and_never_a_variable(command: str, model: str | None) -> None:
    converted, _ = _one(WORKER.replace("EXPRESSION", "{key: gpu, operator: Exists}").replace("COMMAND", command))
    assert yaml.safe_load(converted.text).get("model") == model


def test_who_computes_without_a_gpu_is_told() -> None:
    with_gpu = WORKER.replace("EXPRESSION", "{key: gpu, operator: Exists}")
    claimed = with_gpu.replace("{limits: {nvidia.com/gpu: 8}}", "{claims: [{name: gpu}]}")
    claimed = claimed.replace("tolerations:", "resourceClaims: [{name: gpu}]\n          tolerations:")
    notes = _notes(_one(claimed)[0])
    assert "d: asks for no GPU as it is written; write gpus if it needs some" in notes
    assert any("resourceClaims: left out: devices by claim are not counted; write gpus" in note for note in notes)
    assert not any("asks for no GPU" in note for note in _notes(_one(with_gpu)[0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("kind: DynamoDeployment", "kind: Service"),
            "f: there is Service in it; expected kind: DynamoGraphDeployment or",
        ),
        (("  name: flat", "  nam: flat"), "f:3: metadata: name is missing"),
        (("replicas: 2", "replicas: two"), "f:11: spec.prefill.replicas: expected an integer of at least 0, not 'two'"),
        (("minReplicas: 2", "minReplicas: 7"), "spec.decode.autoscale.minReplicas: 7 is above maxReplicas, 6"),
        (("enabled: true", "enabled: 1"), "spec.decode.autoscale.enabled: expected true or false, not 1"),
        (("cpu: 8", "cpu: lots"), "f:15: spec.decode.resources.cpu: expected a quantity such as 8, 500m or 64Gi"),
        (("gpu: 2", "gpu: 1.5"), "f:15: spec.decode.resources.gpu: expected whole GPUs, not 1.5"),
        (("cpu: 8", "amd.com/gpu: 500m"), "f:15: spec.decode.resources.amd.com/gpu: expected whole GPUs"),
        (("memory: 64Gi", "memory: -1"), "f:15: spec.decode.resources.memory: expected a quantity"),
        (("model: org/model", "model: [a]"), "f:9: spec.model: expected text, not ['a']"),
        (("  prefill:", "  prefill: x\n  other:"), "spec.prefill: expected keys and values, not 'x'"),
    ],
)
def test_bad_values_of_the_flat_form(change: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_dynamo(FLAT.replace(*change, 1), "f")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (V1ALPHA1, ("v1alpha1", "v2"), "f:1: apiVersion: expected one of nvidia.com/v1alpha1, nvidia.com/v1beta1, not"),
        (
            V1ALPHA1,
            ('gpu: "8"', "gpu: all"),
            "f:36: spec.services.DecodeWorker.resources.limits.gpu: expected a quantity",
        ),
        (
            V1ALPHA1,
            ("nodeCount: 2", "nodeCount: 0"),
            "spec.services.DecodeWorker.multinode.nodeCount: expected an integer",
        ),
        (V1ALPHA1, ('gpu: "8"', 'gpu: "1.5"'), "extraPodSpec: nvidia.com/gpu: expected whole GPUs, not 1.5"),
        (V1BETA1, ("nvidia.com/gpu: 8", "nvidia.com/gpu: 500m"), "nvidia.com/gpu: expected whole GPUs, not 0.5"),
        (V1BETA1, ("minAvailable: 2", "minAvailable: 5"), "spec.components[1].minAvailable: 5 is above replicas, 4"),
        (V1BETA1, ("name: p", "name: frontend"), "f:8: spec.components[1].name: frontend is there twice"),
        (
            V1BETA1,
            ("cpu: 4,", "cpu: x,"),
            "f:19: spec.components[1].podTemplate.spec.containers[0].resources.limits.cpu: ",
        ),
        (
            V1BETA1,
            ("containers: [{name: main, image: x", "containers: [{name: 3, image: x"),
            "podTemplate.spec: Expected `str`",
        ),
        (V1BETA1, ("components:", "service:"), "spec.components: expected a list of at least one component"),
        (V1ALPHA1, ("  services:", "  service:"), "spec.services: expected at least one service"),
    ],
)
def test_bad_values_of_graphs(text: str, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_dynamo(text.replace(*change, 1), "f")
    assert message in str(caught.value)


def test_a_deployment_without_replicas_is_refused() -> None:
    with pytest.raises(ConfigError, match="no role has replicas; there is nothing to place"):
        convert_dynamo("kind: DynamoDeployment\nmetadata: {name: a}\nspec: {decode: {replicas: 0}}", "f")
