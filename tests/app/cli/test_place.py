"""`pointsman place` and `pointsman convert`, called as people do."""

from __future__ import annotations

import io
import itertools
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pointsman.app.cli import main
from pointsman.app.cli.place import EXIT_NOT_PLACED
from pointsman.core.placement import solver

Captured = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).parents[3] / "examples" / "placement"
CLUSTER, CHAT, AGENTS, CLOSE = (EXAMPLES / f"{name}.yaml" for name in ("cluster", "chat-70b", "agents-8b", "too-close"))


def _run(*arguments: object) -> int:
    return main.run(list(map(str, arguments)))


def _place(*arguments: object, cluster: Path = CLUSTER) -> int:
    return _run("place", "--cluster", cluster, *arguments)


def _fails(capsys: Captured, *arguments: object) -> str:
    assert _run(*arguments) == 2
    return capsys.readouterr().err


def test_a_deployment_is_placed(capsys: Captured, tmp_path: Path) -> None:
    svg = tmp_path / "a.svg"
    assert _place("--deployment", CHAT, "--svg", svg) == 0
    said = capsys.readouterr().out
    assert (
        "24 nodes (1 down or cordoned), 192 GPUs, 165.5 of them free; levels, near to far: node, nvswitch, rack" in said
    )
    assert (
        "chat-70b (meta-llama/Llama-3.3-70B-Instruct): placed on 4 nodes, 2 nvswitches, 1 rack, 1 zone; optimal" in said
    )
    assert "elastic replicas: prefill 4 of 4 (floor 2)" in said
    assert "PPPPPPPP" in said
    assert ET.parse(svg).getroot().tag.endswith("svg")


def test_why_not_and_what_would_help(capsys: Captured) -> None:
    assert _place("--deployment", CLOSE) == EXIT_NOT_PLACED
    said = capsys.readouterr().out
    assert "batch-405b (meta-llama/Llama-3.1-405B-Instruct): not placed: TopologyUnsatisfied" in said
    assert "does not fit into one rack (near prefill, decode)" in said
    assert "it would fit: near prefill, decode: zone instead of rack" in said
    assert "instead of 3 replicas" in said


def test_a_deployment_without_floors_that_has_no_room_is_not_said_to_be_placed(
    capsys: Captured, tmp_path: Path
) -> None:
    cluster, deployment = tmp_path / "c.yaml", tmp_path / "d.yaml"
    cluster.write_text("nodes: [{name: a, gpus: 1}]\n")
    deployment.write_text("name: batch\nroles: {worker: {replicas: {min: 0, max: 2}, resources: {gpus: 4}}}\n")
    assert _place("--deployment", deployment, cluster=cluster) == 0
    said = capsys.readouterr().out
    assert "1 node, 1 GPU, 1 of them free" in said
    assert "batch: nothing of it is placed: its floors are 0" in said
    assert "optimal" not in said


def test_a_queue_that_is_not_there_is_an_error_with_its_place(capsys: Captured, tmp_path: Path) -> None:
    queues = tmp_path / "queues.yaml"
    queues.write_text("queues: [{name: chat, parent: all}, {name: all}]\n")
    deployment = tmp_path / "d.yaml"
    for queue in ("chatt", "all"):
        deployment.write_text(f"name: a\nqueue: {queue}\nroles: {{w: {{replicas: 1}}}}\n")
        said = _fails(capsys, "place", "--cluster", CLUSTER, "--deployment", deployment, "--queues", queues)
        assert f"d.yaml:1: queue: there is no queue '{queue}' that gangs can wait in; one of chat is" in said


def test_json_has_all_of_it(capsys: Captured) -> None:
    assert _place("--deployment", CLOSE, "--deployment", AGENTS, "--deployment", CHAT, "--json") == EXIT_NOT_PLACED
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    chat, close, agents = document["deployments"]
    assert [each["name"] for each in document["deployments"]] == ["chat-70b", "batch-405b", "agents-8b"]
    assert (chat["outcome"], chat["statement"], chat["replicas"]) == (
        "placed",
        "optimal",
        {"frontend": 2, "prefill": 4, "decode": 2},
    )
    assert len(chat["pods"]) == 2 + 4 + 4
    racks = {pod["domains"]["rack"] for pod in chat["pods"] if pod["role"] != "frontend"}
    assert len(racks) == 1
    assert (close["outcome"], close["reason"]) == ("unplaced", "TopologyUnsatisfied")
    assert close["tightest"]["level"] == "rack"
    assert {change["kind"] for change in close["changes"]} >= {"looser_level", "fewer_replicas"}
    taken = [
        (pod["node"], device)
        for each in (chat, agents)
        for pod in each["pods"]
        if pod["role"] != "draft"
        for device in pod["devices"]
    ]
    assert len(taken) == len(set(taken))
    assert document["cluster"] == {
        "nodes": 24, "nodes_up": 23, "gpus": 192, "gpus_free": 165.5, "levels": ["node", "nvswitch", "rack", "zone"]
    }  # fmt: skip


def test_json_to_a_file_prints_the_table_too(capsys: Captured, tmp_path: Path) -> None:
    assert _place("--deployment", AGENTS, "--json", tmp_path / "p.json") == 0
    assert "agents-8b" in capsys.readouterr().out
    assert json.loads((tmp_path / "p.json").read_text())["deployments"][0]["outcome"] == "placed"


def test_an_unfit_role_says_which_nodes_and_why(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("name: a\nroles: {w: {replicas: 1, selector: {pool: fast}}}")
    assert _place("--deployment", file) == EXIT_NOT_PLACED
    assert "NodeUnfit" in (said := capsys.readouterr().out)
    assert "label pool is not fast" in said


def test_what_kubectl_prints_with_levels_by_hand(capsys: Captured, tmp_path: Path) -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"x/row": "a"}},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    file, deployment = tmp_path / "nodes.json", tmp_path / "d.yaml"
    file.write_text(json.dumps({"kind": "List", "items": [node]}))
    deployment.write_text("name: a\ntopology: {required: row}\nroles: {w: {replicas: 2, resources: {gpus: 4}}}")
    assert _place("--deployment", deployment, "--topology", "x/row", cluster=file) == 0
    captured = capsys.readouterr()
    assert "1 row" in captured.out
    assert "note: there are no pods in the files" in captured.err
    assert "topology.required: level 'row' is not of this topology" in _fails(
        capsys, "place", "--cluster", file, "--deployment", deployment
    )


def test_made_clusters_can_be_placed_on(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    options = ("--nodes", 32, "--nodes-per-nvswitch", 4, "--used", 0.2, "--down", 0.1, "--kinds", "H100=3,A100")
    assert _run("place", "make-cluster", file, *options) == 0
    assert "32 nodes, 256 GPUs, 4 racks, 1 zone, " in capsys.readouterr().out
    again = tmp_path / "again.yaml"
    assert _run("place", "make-cluster", again, *options) == 0
    assert again.read_text() == file.read_text()
    assert _place("--deployment", AGENTS, cluster=file) == 0


def _piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_what_kubectl_prints_can_be_piped(capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    deployment = tmp_path / "d.yaml"
    deployment.write_text("name: a\nroles: {w: {replicas: 2, resources: {gpus: 4}}}")
    _piped(monkeypatch, json.dumps({"kind": "List", "items": [node]}))
    assert _place("--deployment", deployment, cluster=Path("-")) == 0
    assert "a: placed on 1 node" in capsys.readouterr().out
    node["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    _piped(monkeypatch, json.dumps({"kind": "List", "items": [node]}))
    assert "stdin:1: items[0].status: allocatable is missing" in _fails(
        capsys, "place", "--cluster", "-", "--deployment", deployment
    )


def test_every_file_of_place_can_be_piped_but_only_one_at_a_time(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    _piped(monkeypatch, CHAT.read_text())
    assert _place("--deployment", "-") == 0
    _piped(monkeypatch, QUEUES.read_text())
    assert _place("--deployment", CHAT, "--queues", "-") == 0
    _piped(monkeypatch, FLAT)
    assert _run("convert", "-") == 0
    assert "name: flat" in capsys.readouterr().out
    _piped(monkeypatch, CLUSTER.read_text())
    options = ("--deployment", CHAT, "--hours", 1, "--runs-h", 1)
    assert _run("place", "simulate", "--cluster", "-", *options) == 0
    said = _fails(capsys, "place", "--cluster", "-", "--deployment", CHAT, "--deployment", "-")
    assert "--deployment 2 -: stdin is for --cluster already, and can be read once; name a file" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--deployment", CHAT], "place needs --cluster FILE"),
        (["--cluster", CLUSTER], "place needs --deployment FILE"),
        (["--cluster", CLUSTER, "--deployment", CHAT, "--budget", "2"], "--budget 2: expected a duration"),
        (
            ["--cluster", CLUSTER, "--deployment", CHAT, "--deployment", CHAT],
            "name: chat-70b is the name of the deployment at",
        ),
        (["--cluster", CLUSTER, "--deployment", CLUSTER], "topology: expected a mapping with keys such as required"),
        (["--cluster", CLUSTER, "--deployment", CHAT, "--topology", "a=node"], "--topology a=node: level 'node'"),
        (["--cluster", "none.yaml", "--deployment", CHAT], "none.yaml: can't be read"),
        (["--cluster", CLUSTER, "--deployment", CHAT, "--svg", CHAT], "is the file of"),
        (["--topology", "a=b", "make-cluster", "x.yaml", "--nodes", "1"], "has options of its own"),
        (
            ["make-cluster", "x.yaml", "--nodes", "8", "--kinds", "H100=many"],
            "--kinds H100=many: 'H100=many': expected KIND=WEIGHT",
        ),
        (
            ["make-cluster", "x.yaml", "--nodes", "8", "--nodes-per-nvswitch", "3"],
            "nodes_per_nvswitch is 3; a divisor of 8",
        ),
        (["make-cluster", "x.yaml", "--nodes", "8", "--cpu-per-gpu", "x"], "--cpu-per-gpu x: expected CPUs, such as 8"),
        (
            ["make-cluster", "x.yaml", "--nodes", "8", "--cpu-per-gpu", "1e15"],
            "cpu_milli_per_gpu is 1000000000000000",
        ),
        (
            ["make-cluster", "x.yaml", "--nodes", "8", "--memory-per-gpu", "-1"],
            "--memory-per-gpu -1: expected",
        ),
        (
            ["make-cluster", "x.yaml", "--nodes", "8", "--kinds", "A=nan"],
            "--kinds A=nan: 'A=nan': expected KIND",
        ),
        (["make-cluster", "x.yaml", "--nodes", "8", "--kinds", "A,B=1e308"], "each weight above 0, at most 1,000,000"),
        (["make-cluster", "x.yaml", "--nodes", "8", "--kinds", ""], "--kinds : '': expected KIND=WEIGHT"),
        (["make-cluster", "x.yaml", "--nodes", "8", "--used", "nan"], "'--used': nan: expected a share from 0 to 1"),
        (["make-cluster", "x.yaml", "--nodes", "8", "--down", "1.1"], "'--down': 1.1: expected a share from 0 to 1"),
        (["make-cluster", "x.yaml", "--nodes", "8", "--cordoned", "inf"], "'--cordoned': inf: expected a share"),
        (["make-cluster", "x.yaml", "--nodes", "1e9"], "'--nodes': '1e9' is not a valid integer"),
        (["make-cluster", "x.yaml", "--nodes", "8", "--racks-per-zone", "9" * 30], "is not in the range 1<=x<=100000"),
        (["--cluster", CLUSTER, "--deployment", CHAT, "--budget", f"{'9' * 400}s"], "expected a duration above 0"),
    ],
)
def test_bad_calls_say_what_to_do(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in _fails(capsys, "place", *arguments)


FLAT = """\
kind: DynamoDeployment
metadata: {name: flat, namespace: x}
spec:
  model: m
  prefill: {replicas: 1, resources: {gpu: 4}}
  decode: {replicas: 2, resources: {gpu: 2}, autoscale: {enabled: true, maxReplicas: 4, targetGPUUtilization: 80}}
"""


def test_convert_and_place(capsys: Captured, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    theirs.write_text(FLAT)
    assert _run("convert", theirs, ours) == 0
    told = capsys.readouterr().err
    assert f"note: {theirs}:6: spec.decode.autoscale.targetGPUUtilization: left out" in told
    assert "note: 1 fields without a part in placement are left out; the file names them" in told
    assert _place("--deployment", ours) == 0
    assert "decode 4 of 4 (floor 1)" in capsys.readouterr().out


def test_convert_to_stdout(capsys: Captured, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(FLAT + "---\n" + FLAT.replace("flat", "other"))
    assert _run("convert", theirs) == 0
    assert capsys.readouterr().out.count("\n---\n") == 1


def test_a_dash_is_stdout_and_never_a_file(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(FLAT)
    monkeypatch.chdir(tmp_path)
    assert _run("convert", theirs, "-") == 0
    assert "name: flat" in capsys.readouterr().out
    assert _run("place", "make-cluster", "-", "--nodes", 2) == 0
    said = capsys.readouterr()
    assert "-: 2 nodes, 16 GPUs" in said.err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.out.encode())))
    assert _place("--deployment", AGENTS, cluster=Path("-")) == 0
    assert "--svg -: stdout is for the table or --json" in _fails(
        capsys, "place", "--cluster", CLUSTER, "--deployment", CHAT, "--svg", "-"
    )
    assert "--html -: stdout is" in _fails(capsys, "place", "simulate", "--nodes", 2, "--html", "-")
    assert not Path("-").exists()


def test_convert_keeps_its_source(capsys: Captured, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(FLAT)
    assert "is the file that is read" in _fails(capsys, "convert", theirs, theirs)
    assert "expected kind: DynamoGraphDeployment or DynamoDeployment" in _fails(capsys, "convert", CHAT)


QUEUES = EXAMPLES / "queues.yaml"
NO_TIME = {"budget_s": -1.0}


def test_quotas_and_limits_of_queues(capsys: Captured, tmp_path: Path) -> None:
    assert _place("--deployment", AGENTS, "--deployment", CHAT, "--queues", QUEUES) == 0
    assert "worker 7 of 12 (floor 4)" in capsys.readouterr().out
    small = tmp_path / "q.yaml"
    small.write_text("queues: [{name: agents, limit: {gpus: 4}}]")
    assert _place("--deployment", AGENTS, "--queues", small) == EXIT_NOT_PLACED
    said = capsys.readouterr().out
    assert "not placed: QuotaExceeded" in said
    assert "Queue agents may have at most 4 GPUs: it has 0 GPUs, and 5 GPUs more are asked for." in said
    assert "it would fit: worker: 3 instead of 4 replicas" in said


def test_elastic_replicas_that_the_queue_may_not_have_are_told(capsys: Captured, tmp_path: Path) -> None:
    queues = tmp_path / "q.yaml"
    queues.write_text("queues: [{name: agents, limit: {gpus: 8}}]")
    assert _place("--deployment", AGENTS, "--queues", queues) == 0
    assert "worker 7 of 12 (floor 4); queue agents may have no more" in capsys.readouterr().out
    assert _place("--deployment", AGENTS, "--queues", queues, "--json") == 0
    assert json.loads(capsys.readouterr().out)["deployments"][0]["held_back_by_queue"] is True
    assert _place("--deployment", AGENTS) == 0
    assert "may have no more" not in capsys.readouterr().out


def test_elastic_replicas_that_time_ran_out_for_are_told(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("name: a\nroles: {w: {replicas: {min: 0, max: 60}, resources: {gpus: 1}}}")
    seconds = itertools.count()
    monkeypatch.setattr("pointsman.app.cli.place.time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    assert _place("--deployment", file, "--budget", "1s") == 0
    said = capsys.readouterr().out
    assert "a: nothing of it is placed: its floors are 0, and time ran out before its elastic replicas were" in said
    assert _place("--deployment", file, "--budget", "1s", "--json") == 0
    assert json.loads(capsys.readouterr().out)["deployments"][0]["elastic_cut_short"] is True
    # With a floor that had its turn before.
    file.write_text("name: a\nroles: {w: {replicas: {min: 1, max: 60}, resources: {gpus: 1}}}")
    grow = solver.grow
    monkeypatch.setattr("pointsman.app.placements.in_order.grow", lambda *args, **how: grow(*args, **(how | NO_TIME)))
    assert _place("--deployment", file, "--budget", "1h") == 0
    said = capsys.readouterr().out
    assert "elastic replicas: w 1 of 60 (floor 1); time ran out before more were tried, --budget gives more" in said
    monkeypatch.undo()
    assert _place("--deployment", file, "--budget", "1h", "--json") == 0
    assert json.loads(capsys.readouterr().out)["deployments"][0]["elastic_cut_short"] is False


def test_nodes_that_are_left_out_are_told_with_why(capsys: Captured) -> None:
    assert _place("--deployment", CLOSE) == EXIT_NOT_PLACED
    assert "left out for prefill, decode: not ready (1 node)" in capsys.readouterr().out
