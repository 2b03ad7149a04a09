from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.placement.cluster import Toleration
from pointsman.core.placement.gang import Near
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.topology import Level, Topology
from pointsman.edge.manifests.deployment_file import deployments_of, read_deployments

WHOLE = """\
name: chat-70b
model: a-model
queue: research
priority: 7
preemptible: false
min_runtime: 10m
topology: {required: zone, preferred: rack}
roles:
  prefill:
    replicas: {min: 2, max: 6}
    resources: {gpus: 8, cpu: 32, memory: 256Gi}
    selector: {pool: [a, b], gpu: H100, there: []}
    gpu_kinds: [H100]
    tolerations:
      - {key: gpu, operator: Exists, effect: NoSchedule}
      - {key: team, value: x}
  big-decode:
    replicas: 3
    stage: decode
    pods_per_replica: 2
    resources: {gpus: 0.5}
    topology: {required: zone, preferred: rack, replica_required: rack, replica_preferred: nvswitch}
near:
  - {roles: [prefill, big-decode], required: zone, preferred: rack}
"""


def test_all_of_it_is_read() -> None:
    (deployment,) = deployments_of(WHOLE, "d.yaml")
    gang = deployment.gang
    prefill, decode = gang.groups
    assert (gang.name, gang.queue, gang.priority, gang.preemptible, gang.min_runtime_s) == (
        "chat-70b",
        "research",
        7,
        False,
        600,
    )
    assert deployment.model == "a-model"
    assert (gang.required, gang.preferred) == ("zone", "rack")
    assert prefill.requests == Resources(8000, 32_000, 256 * 2**30)
    assert (prefill.min_replicas, prefill.max_replicas, prefill.stage) == (2, 6, "prefill")
    assert prefill.selector == {"pool": ("a", "b"), "gpu": ("H100",), "there": ()}
    assert prefill.tolerations == (Toleration("gpu", "", "NoSchedule", True), Toleration("team", "x"))
    assert (decode.min_replicas, decode.max_replicas, decode.stage, decode.pods_per_replica) == (3, 3, "decode", 2)
    assert (decode.required, decode.preferred) == ("zone", "rack")
    assert (decode.replica_required, decode.replica_preferred) == ("rack", "nvswitch")
    assert decode.requests.gpu_milli == 500
    roles = ("prefill", "big-decode")
    assert gang.near == (Near(roles, "zone", True), Near(roles, "rack", False))


def test_several_documents_are_several_deployments() -> None:
    one = "name: {}\nroles: {{worker: {{replicas: 1}}}}\n"
    found = deployments_of(one.format("a") + "---\n" + one.format("b"), "d.yaml")
    assert [each.gang.name for each in found] == ["a", "b"]


def test_json_is_read_too() -> None:
    (found,) = deployments_of(
        '{"name": "a", "roles": {"worker": {"replicas": 2, "resources": {"gpus": "1"}}}}', "d.json"
    )
    assert found.gang.groups[0].requests.gpu_milli == 1000


_ROLES = "roles: {prefill: {replicas: 1}, decode: {replicas: 1}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "d: is empty; expected a deployment with name and roles"),
        ("- a", "d:1: expected a deployment with keys such as name, roles, near"),
        ("name: a\n", "d:1: roles is missing; expected keys and values"),
        ("name: a\nroles: {}", "d:2: roles: is empty; name at least one role"),
        ("name: a\nroles:\n  w:\n    replica: 1", "d:4: roles.w.replica: unknown key; did you mean replicas?"),
        ("name: a\nroles:\n  w:\n    replicas: 0", "d:4: roles.w.replicas: expected a number of at least 1"),
        ("name: a\nroles:\n  w:\n    replicas: {min: 3, max: 2}", "d:4: roles.w.replicas.max: 2 is below min, 3"),
        (
            "name: a\nroles:\n  w: {replicas: 1, resources: {gpus: 1.5}}",
            "roles.w.resources.gpus: expected a whole number",
        ),
        (
            "name: a\nroles:\n  w: {replicas: 1, resources: {memory: 1Q}}",
            "roles.w.resources.memory: expected an amount",
        ),
        (
            "name: a\nroles:\n  w: {replicas: 1, pods_per_replica: 0}",
            "pods_per_replica: expected an integer from 1 to 10000",
        ),
        (
            "name: a\nroles:\n  w: {replicas: {min: 0, max: 20000}, pods_per_replica: 6}",
            "d:2: roles: 120,000 pods together with all elastic replicas; at most 100,000 are expected",
        ),
        ("name: a\nroles:\n  w: {replicas: .inf}", "d:3: roles.w.replicas: expected a number of at least 1"),
        ("name: a\nroles:\n  w: {replicas: {min: -1, max: 2}}", "replicas.min: expected an integer from 0 to"),
        ("name: a\nroles:\n  w: {replicas: {min: .nan, max: 2}}", "replicas.min: expected an integer from 0 to"),
        ("name: a\nroles:\n  w: {replicas: 1, resources: {gpus: .nan}}", "resources.gpus: expected a whole number"),
        ("name: a\nroles:\n  w: {replicas: 1, resources: {gpus: 1e17}}", "resources.gpus: expected a whole number"),
        ("name: a\nroles:\n  w: {replicas: 1, resources: {cpu: -.inf}}", "resources.cpu: expected CPUs"),
        (f"name: a\nmin_runtime: {'9' * 400}s\nroles:\n  w: {{replicas: 1}}", "d:2: min_runtime: expected a duration"),
        ("name: a\nroles:\n  w: {replicas: 1, stage: encode}", "stage: expected one of prefill, decode, other"),
        ("name: a\nroles:\n  w: {replicas: 1, tolerations: [{value: x}]}", "tolerations[0].key: is missing"),
        (
            "name: a\nroles:\n  w: {replicas: 1, tolerations: [{key: x, operator: Exists, value: y}]}",
            "tolerations[0].value: stands beside operator: Exists",
        ),
        (
            f"name: a\n{_ROLES}\nnear: [{{roles: [prefill, decod], required: rack}}]",
            "d:3: near[0].roles: there is no role",
        ),
        (
            f"name: a\n{_ROLES}\nnear: [{{roles: [prefill], required: rack}}]",
            "near[0].roles: is empty; name at least 2",
        ),
        (f"name: a\n{_ROLES}\nnear: [{{roles: [decode, decode], required: rack}}]", "a role is there twice"),
        (
            f"name: a\n{_ROLES}\nnear: [{{roles: [prefill, decode]}}]",
            "stand without a level; add required or preferred",
        ),
        (f"name: a\n{_ROLES}\nmin_runtime: 5", "d:3: min_runtime: expected a duration above 0"),
        (f"name: a\n{_ROLES}\npriority: high", "d:3: priority: expected an integer from"),
        ("kind: DynamoGraphDeployment", "d:1: this is a DynamoGraphDeployment; `pointsman convert FILE` makes"),
        ("name: a\nname: b", "d:2: name is given twice"),
        ("name: [", ": this is no valid YAML"),
    ],
)
def test_bad_files_name_line_key_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        deployments_of(text, "d")
    assert message in str(caught.value)


def test_unknown_levels_are_named_with_their_line() -> None:
    (found,) = deployments_of(WHOLE, "d.yaml")
    found.check_levels(Topology((Level("nvswitch", "n"), Level("rack", "r"), Level("zone", "z"))))
    with pytest.raises(
        ConfigError, match=r"^d.yaml:7: topology.preferred: level 'rack' is not of this topology; one of"
    ):
        found.check_levels(Topology((Level("nvswitch", "n"), Level("zone", "z"))))


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_deployments(tmp_path / "none.yaml")
