"""`pointsman place simulate`, called as people do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pointsman.app.cli import main

Captured = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).parents[3] / "examples" / "placement"
CLUSTER, CHAT, QUEUES = (EXAMPLES / f"{name}.yaml" for name in ("cluster", "chat-70b", "queues"))


def _run(*arguments: object) -> int:
    return main.run(list(map(str, arguments)))


def _simulate(*arguments: object) -> int:
    return _run("place", "simulate", *arguments)


def _fails(capsys: Captured, *arguments: object) -> str:
    assert _run(*arguments) == 2
    return capsys.readouterr().err


def test_a_cluster_over_time(capsys: Captured, tmp_path: Path) -> None:
    options = ("--nodes", 8, "--hours", 2, "--seeds", 2, "--runs-h", 0.5, "--fails-every-h", 20)
    assert _run("place", "simulate", *options, "--json", tmp_path / "s.json", "--html", tmp_path / "s.html") == 0
    assert "no gang ever held a part of itself" in (tmp_path / "s.html").read_text()
    said = capsys.readouterr().out
    assert "8 nodes, 64 GPUs, 2 h, load 0.9" in said
    assert "partial gang s" in said
    document = json.loads((tmp_path / "s.json").read_text())
    assert [run["seed"] for run in document["runs"]] == [0, 1]
    assert all(run["measures"]["partial_gang_s"] == 0 for run in document["runs"])
    assert _run("place", "simulate", *options, "--json") == 0
    assert json.loads(capsys.readouterr().out) == document


def test_deployments_and_queues_of_ones_own_over_time(capsys: Captured) -> None:
    options = ("--deployment", CHAT, "--queues", QUEUES, "--hours", 1, "--runs-h", 0.2, "--load", 0.3)
    assert _run("place", "simulate", "--cluster", CLUSTER, *options, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"] == 24
    assert document["runs"][0]["gangs"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs either --cluster FILE or --nodes N"),
        (["--cluster", CLUSTER, "--nodes", 8], "needs either --cluster FILE or --nodes N"),
        (["--nodes", 8, "--topology", "a=b"], "--topology goes with --cluster"),
        (["--nodes", 8, "--queues", CHAT], "name: unknown key; known here: queues"),
    ],
)
def test_bad_simulations_say_what_to_do(capsys: Captured, arguments: list[object], message: str) -> None:
    assert message in _fails(capsys, "place", "simulate", *arguments)


def test_simulating_needs_gpus(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("nodes: [{name: a, cpu: 8}]")
    for options in ((), ("--deployment", CHAT)):
        said = _fails(capsys, "place", "simulate", "--cluster", file, *options)
        assert "no node has GPUs, and the load is given in GPUs" in said


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "-0.001", "1e30", "x", ""])
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--load", "a share of all GPUs above 0 to 10"),
        ("--hours", "hours above 0 to 10,000"),
        ("--runs-h", "hours from 0.2 to 10,000"),
        ("--urgent", "a share from 0 to 1"),
        ("--fails-every-h", "hours from 0.1 to 1,000,000, or 0"),
        ("--repair-h", "hours from 0.01 to 10,000"),
        ("--startup-s", "seconds from 0 to 1,000,000"),
    ],
)
def test_numbers_that_nobody_means_are_refused_by_name(
    capsys: Captured, option: str, expected: str, value: str
) -> None:
    said = _fails(capsys, "place", "simulate", "--nodes", 2, option, value)
    assert f"Invalid value for '{option}': {value}: expected {expected}" in said


@pytest.mark.parametrize("option", ["--runs-h", "--fails-every-h", "--repair-h"])
def test_times_close_to_0_that_would_take_for_ever_are_refused(capsys: Captured, option: str) -> None:
    assert f"Invalid value for '{option}': 1e-9" in _fails(capsys, "place", "simulate", "--nodes", 2, option, "1e-9")


@pytest.mark.parametrize(
    "options",
    [("--fails-every-h", 0), ("--runs-h", 0.2), ("--startup-s", 0), ("--urgent", 0), ("--urgent", 1), ("--load", 10)],
)
def test_the_ends_of_their_ranges_are_allowed(options: tuple[object, ...]) -> None:
    assert _simulate("--nodes", 2, "--hours", 1, *options) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", 20_000, "--hours", 10_000), "gangs would come; at most 1,000,000 can be simulated: less --load"),
        (
            ("--nodes", 20_000, "--hours", 10_000, "--load", 0.001, "--fails-every-h", 0.1),
            "about 49,000,000 times a node would fail; at most 1,000,000 can be simulated: fewer --hours",
        ),
    ],
)
def test_runs_too_large_are_refused(capsys: Captured, options: tuple[object, ...], message: str) -> None:
    assert message in _fails(capsys, "place", "simulate", *options)


def test_a_run_in_which_nothing_came_says_so_instead_of_zeros(capsys: Captured, tmp_path: Path) -> None:
    file, page = tmp_path / "s.json", tmp_path / "s.html"
    assert _simulate("--nodes", 8, "--hours", 0.01, "--json", file, "--html", page) == 0
    said = capsys.readouterr()
    assert "placed whole" not in said.out
    assert "0 s" not in said.out
    assert "no gang came in 0.01 h, so nothing was seen: at this load one comes every" in said.err
    assert "h would bring 100" in said.err
    notes = json.loads(file.read_text())["notes"]
    assert any("no gang came in 0.01 h" in note for note in notes)
    assert "No gang came" in page.read_text()
    assert "no gang ever held" not in page.read_text()


def test_few_gangs_are_told_beside_their_numbers_and_many_are_not(capsys: Captured, tmp_path: Path) -> None:
    small = tmp_path / "small.yaml"
    small.write_text("name: small\nroles: {w: {replicas: 1, resources: {gpus: 1}}}\n")
    options = ("--nodes", 1, "--deployment", small, "--runs-h", 0.5, "--fails-every-h", 0)
    assert _simulate(*options, "--hours", 1, "--seeds", 2) == 0
    said = capsys.readouterr()
    assert "placed whole" in said.out
    assert "no node fails" in said.out
    assert "gangs came in each run, so shares and percentiles say little" in said.err
    assert _simulate(*options, "--hours", 15) == 0
    assert "say little" not in capsys.readouterr().err


def test_deployments_that_can_never_be_placed_are_told_before_hours_are_spent(capsys: Captured, tmp_path: Path) -> None:
    large, queues, file = tmp_path / "large.yaml", tmp_path / "queues.yaml", tmp_path / "s.json"
    large.write_text("name: large\nroles: {w: {replicas: 3, resources: {gpus: 8}}}\n")
    assert _simulate("--nodes", 2, "--deployment", large, "--hours", 1) == 0
    assert "large does not fit even while nothing else is placed, so it never is: " in capsys.readouterr().err
    queues.write_text("queues: [{name: a}, {name: b, limit: {gpus: 8}}, {name: c, limit: {gpus: 0}}]\n")
    assert _simulate("--nodes", 4, "--deployment", large, "--queues", queues, "--hours", 1, "--json", file) == 0
    assert "queue b may never have large (nor may c): queue b may have at most 8 GPUs" in capsys.readouterr().err
    assert len([note for note in json.loads(file.read_text())["notes"] if "may never have" in note]) == 1


def test_deployments_go_to_the_queue_that_they_name(capsys: Captured, tmp_path: Path) -> None:
    options = ("--cluster", CLUSTER, "--deployment", CHAT, "--queues", QUEUES, "--hours", 1)
    assert _simulate(*options) == 0
    # By chance half of them would go to `agents`, where they may never be.
    assert "may never have" not in capsys.readouterr().err
    stray, anywhere = tmp_path / "stray.yaml", tmp_path / "anywhere.yaml"
    stray.write_text(CHAT.read_text().replace("queue: chat", "queue: chta"))
    said = _fails(capsys, "place", "simulate", *options, "--deployment", stray)
    assert f"{stray}:2: queue: there is no queue 'chta' that gangs can wait in; one of chat, agents is expected" in said
    anywhere.write_text(CHAT.read_text().replace("queue: chat", ""))
    assert _simulate(*options, "--deployment", anywhere) == 0
    assert "queue agents may never have chat-70b" in capsys.readouterr().err


def test_nodes_that_are_down_from_the_start_stay_so_and_are_told(capsys: Captured, tmp_path: Path) -> None:
    cluster, small, file = tmp_path / "c.yaml", tmp_path / "small.yaml", tmp_path / "s.json"
    cluster.write_text("nodes: [{name: a, count: 8, gpus: 8, ready: false}, {name: b, gpus: 8}]\n")
    small.write_text("name: small\nroles: {w: {replicas: 1, resources: {gpus: 8}}}\n")
    options = ("--hours", 12, "--runs-h", 0.5, "--fails-every-h", 1, "--repair-h", 0.01, "--json", file)
    assert _simulate("--cluster", cluster, "--deployment", small, *options) == 0
    assert "8 of 72 GPUs can be used: the others are in use, or on nodes that are down" in capsys.readouterr().err
    (run,) = json.loads(file.read_text())["runs"]
    # One gang at a time: nodes that were down do not come back because nodes fail and return.
    assert run["finished"] <= 12 / (1 / 6)
    assert run["measures"]["placed_share"] < 0.4


def test_deployments_without_gpus_have_no_load(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    for role in ("{replicas: 1, resources: {cpu: 1}}", "{replicas: {min: 0, max: 2}, resources: {gpus: 1}}"):
        file.write_text(f"name: a\nroles: {{w: {role}}}\n")
        said = _fails(capsys, "place", "simulate", "--nodes", 2, "--deployment", file)
        assert "no --deployment asks for GPUs in its floors" in said


def test_a_start_up_longer_than_the_run_is_told(capsys: Captured) -> None:
    assert _simulate("--nodes", 2, "--hours", 1, "--startup-s", 3_600) == 0
    assert "--startup-s is 3,600 and the run ends after 3,600 s: nothing computes" in capsys.readouterr().err


def test_no_file_that_is_read_is_written_over(capsys: Captured, tmp_path: Path) -> None:
    cluster, queues = tmp_path / "c.yaml", tmp_path / "q.yaml"
    cluster.write_text(CLUSTER.read_text())
    queues.write_text(QUEUES.read_text())
    options = ("place", "simulate", "--cluster", cluster, "--queues", queues, "--deployment", CHAT)
    for option, file, owner in (("--json", cluster, "--cluster"), ("--html", queues, "--queues")):
        assert f"{option} {file}: is the file of {owner} too" in _fails(capsys, *options, option, file)
