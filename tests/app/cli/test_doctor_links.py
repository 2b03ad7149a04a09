"""`pointsman doctor links` before nodes that really run, over loopback; how fast that is, nobody asserts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from pointsman.app.cli import doctor_links_output as output
from pointsman.app.cli import main
from pointsman.core.ledger.events import WorkerJoined
from pointsman.core.model.worker import WorkerId, WorkerSpec
from pointsman.edge.configuration.links_file import load_links
from pointsman.edge.node.server import NodeServer
from pointsman.edge.node.survey import Survey
from pointsman.edge.node.verdicts import verdicts
from pointsman.edge.serving.frontend import Frontend
from support.nodes_in_thread import TOKEN, NodesInThread
from support.probed_links import probe, surveyed

QUICK = ("--sizes", "64KiB,256KiB", "--seconds", "10")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodesInThread]:
    monkeypatch.setenv("POINTSMAN_NODE_TOKEN", TOKEN)
    with NodesInThread() as running:
        yield running


def asked(*arguments: str) -> int:
    return main.run(["doctor", "links", *QUICK, *arguments])


def of(*urls: str) -> list[str]:
    return [part for url in urls for part in ("--node", url)]


def test_links_are_measured_printed_saved_and_told(
    nodes: NodesInThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save, frontend = tmp_path / "links.yaml", nodes.front_end()
    urls = of(nodes.node(name="a"), nodes.node(name="b"), "c=" + nodes.node())
    status = asked(*urls, "--transport", "tcp", "--save", str(save), "--admin", frontend.admin_url)
    out, err = capsys.readouterr()
    assert status in (0, 1)  # a busy machine may be slow in one direction
    assert "from \\ to" in out
    assert "there and back" in err
    assert "a – b: " in err
    links = load_links(save).links
    assert {(link.source, link.target) for link in links} == {(x, y) for x in "abc" for y in "abc" if x != y}
    assert [sample.size_bytes for sample in links[0].samples] == [64 << 10, 256 << 10]
    assert {(row.source, row.target) for row in frontend.ledger.links_snapshot()} == {
        (link.source, link.target) for link in links
    }
    assert TOKEN not in out + err


def test_a_document_has_all_of_it(nodes: NodesInThread, capsys: pytest.CaptureFixture[str]) -> None:
    asked(*of("a=" + nodes.node(), "b=" + nodes.node()), "--json")
    document = json.loads(capsys.readouterr().out)
    assert set(document["nodes"]) == {"a", "b"}
    (forth, back) = document["links"]
    assert (forth["source"], forth["target"], back["source"], back["target"]) == ("a", "b", "b", "a")
    assert forth["gb_per_s"] > 0
    assert forth["transport"] in ("shm", "nixl")
    assert document["unreachable"] == {}
    assert document["failures"] == []


def test_a_node_that_is_away_does_not_keep_the_others_from_being_measured(
    nodes: NodesInThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = tmp_path / "links.json"
    urls = of("a=" + nodes.node(), "b=" + nodes.node(), "c=http://127.0.0.1:1")
    assert asked(*urls, "--save", str(save)) == 1
    out, err = capsys.readouterr()
    assert "node http://127.0.0.1:1: can't be reached (connection refused)" in out
    assert "does `pointsman node` run there?" in err
    assert len(load_links(save).links) == 2


class Dying(NodeServer):
    """Gives out a ticket, and is no more."""

    async def _ticket(self, request: web.Request) -> web.Response:
        answer = await super()._ticket(request)
        await self.probes.close()
        return answer


def test_a_node_that_dies_in_the_middle_is_named_and_the_rest_is_measured(
    nodes: NodesInThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = tmp_path / "links.yaml"
    urls = of("a=" + nodes.node(), "b=" + nodes.node(), "c=" + nodes.node(Dying))
    assert asked(*urls, "--save", str(save)) == 1
    out, _ = capsys.readouterr()
    assert "a – c: node http://127.0.0.1:" in out
    assert "no connection to 127.0.0.1:" in out
    assert {(link.source, link.target) for link in load_links(save).links} == {("a", "b"), ("b", "a")}


def test_where_nothing_can_be_measured_nothing_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = tmp_path / "links.yaml"
    urls = of("a=http://127.0.0.1:1", "b=http://127.0.0.1:2")
    assert asked(*urls, "--save", str(save)) == 1
    assert "nothing was measured, so nothing is saved" in capsys.readouterr().err
    assert not save.exists()


def test_a_wrong_token_is_told(
    nodes: NodesInThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTHER", "wrong-token")
    assert asked(*of("a=" + nodes.node(), "b=" + nodes.node()), "--token-env", "OTHER") == 1
    out, err = capsys.readouterr()
    assert "it wants its token" in out
    assert "wrong-token" not in out + err


def test_a_front_end_that_does_not_hear_is_told(nodes: NodesInThread, capsys: pytest.CaptureFixture[str]) -> None:
    urls = of("a=" + nodes.node(), "b=" + nodes.node())
    assert asked(*urls, "--transport", "tcp", "--admin", "http://127.0.0.1:1") == 1
    out, err = capsys.readouterr()
    assert "from \\ to" in out
    assert "--admin-url no front end answers at http://127.0.0.1:1" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no nodes: links are between two at least"),
        (of("http://a:1"), "1 node: links are between two"),
        (of("http://a:1", "http://a:1"), "1 node: links are between two"),
        (of("x=http://a:1", "y=http://a:1"), "is given twice, as x and as y"),
        (of("a:1", "http://b:1"), "--node a:1: expected the URL of a node"),
        ([*of("http://a:1", "http://b:1"), "--sizes", "1MiB,big"], "'big': expected a size above 0"),
        ([*of("http://a:1", "http://b:1"), "--sizes", "64GiB"], "64GiB is more than 1GiB"),
        ([*of("http://a:1", "http://b:1"), "--token-env", "NO_SUCH"], "NO_SUCH: that environment variable is not set"),
        ([*of("http://a:1", "http://b:1"), "--save", "/no/such/folder/x"], "there is no folder /no/such/folder"),
        (["--config", "/no/such/file"], "can't be read"),
        ([*of("http://a:1", "http://b:1"), "--sizes", "1,2,3,4,5,6", "--seconds", "9"], "6 sizes of 9 s each way may"),
    ],
)
def test_wrong_input_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "links", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_machines_that_have_one_name_are_refused(
    nodes: NodesInThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = of(nodes.node(), nodes.node())
    assert asked(*urls) == 2
    assert "are both called 127.0.0.1" in capsys.readouterr().err
    monkeypatch.setenv("POINTSMAN_NODE_TOKEN", "wrong")
    assert asked(*urls) == 1
    assert capsys.readouterr().out.count("it wants its token") == 2


def test_front_ends_without_engines_on_the_machines_say_that_nobody_uses_it(
    nodes: NodesInThread, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = nodes.front_end(), nodes.front_end()
    spec = WorkerSpec(WorkerId("w"), "http://gpu-1:8000", "vllm", ("m",))
    nodes.run(emitted(second, WorkerJoined(spec, 0.0)))
    urls = of("gpu-1=" + nodes.node(), "gpu-2=" + nodes.node())
    assert asked(*urls, "--admin-url", first.admin_url, "--admin-url", second.admin_url) == 1
    err = capsys.readouterr().err
    assert f"{first.admin_url} has no engines on gpu-1, gpu-2, so nobody uses" in err
    assert "its engines are on no machine yet" in err
    assert f"{second.admin_url} has no engines on gpu-2, so nobody uses" in err
    assert "its engines are on gpu-1. If that is the same machine by another name, give it: --node NAME=URL" in err
    assert len(second.ledger.links_snapshot()) == 2


class _Held(NodeServer):
    """A node that is never done with what it is asked."""

    async def _ticket(self, request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        raise AssertionError("unreachable")


def test_who_stops_it_sees_what_was_measured_and_gets_no_good_status(
    nodes: NodesInThread, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    urls = of("a=" + nodes.node(), "b=" + nodes.node(), "c=" + nodes.node(_Held))
    save = tmp_path / "links.yaml"
    stop = threading.Thread(target=_stop_once, args=(capfd,))
    stop.start()
    status = asked(*urls, "--transport", "tcp", "--save", str(save))
    stop.join()
    out = capfd.readouterr().out
    assert status == 130
    assert "from \\ to" in out
    assert not save.exists()


def _stop_once(capfd: pytest.CaptureFixture[str]) -> None:
    """When the first pair is measured."""
    deadline = time.monotonic() + 30
    while "a – b: " not in capfd.readouterr().err and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


async def emitted(frontend: Frontend, event: WorkerJoined) -> None:
    frontend.emit(event)


def test_not_all_pairs_is_no_good_news(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = {("a", "b"): probe(3.0), ("a", "c"): probe(3.0), ("b", "c"): probe(3.0)}
    assert "nothing is wrong" in shown(capsys, pairs)
    found = surveyed(pairs)
    output.print_links(Survey(found.members, {}, found.pairs[:2]), ())
    assert "nothing is wrong" not in capsys.readouterr().out


def test_what_broke_off_is_not_judged_by_its_small_transfers() -> None:
    small = msgspec.structs.replace(probe(0.001), broke="it hung up")
    found = surveyed({("a", "b"): probe(3.0), ("a", "c"): probe(3.0), ("b", "c"): small})
    assert verdicts(tuple(found.directions())) == ()


def test_machines_of_a_configuration_are_asked_once_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "pointsman.yaml"
    config.write_text(
        "control-plane: {topology_levels: [host, rack]}\n"
        "execution-group:\n  nodes:\n"
        "  - {url: http://127.0.0.1:8000}\n  - {url: http://127.0.0.1:8001}\n"
        "  - {url: 'http://[::1]:8000', topology: {host: gpu-b}}\n"
    )
    assert asked("--config", str(config), "--node-port", "1") == 1
    out = capsys.readouterr().out
    assert "node http://127.0.0.1:1: " in out
    assert "node http://[::1]:1: " in out


def shown(capsys: pytest.CaptureFixture[str], *args: Any, **changes: Any) -> str:
    found = surveyed(*args, **changes)
    output.print_links(found, verdicts(tuple(found.directions())))
    return capsys.readouterr().out


def test_findings_and_failures_stand_below_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    slow = probe(0.11, 9.0, ports=(100.0, 100.0))
    text = shown(capsys, {("a", "b"): slow, ("a", "c"): "it hung up"}, {"d": "node http://d:8090: is away"})
    assert "│ a         │" in text
    assert "0.11 GB/s 100 µs" in text
    assert "a → b: 0.11 GB/s over eth1, which says 100 Gb/s" in text
    assert "a – c: it hung up" in text
    assert "is away" in text
    assert "nothing is wrong" not in text


def test_what_is_well_is_said_so_and_many_machines_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing is wrong" in shown(capsys, {("a", "b"): probe(1.0)})
    text = shown(capsys, {("n0", f"n{i}"): probe(1.0) for i in range(1, 14)})
    assert "from \\ to" not in text
    assert text.count("n0") == 26


def test_a_saved_file_can_be_posted_as_it_is() -> None:
    found = surveyed({("a", "b"): probe(1.0)})
    file = output.links_file(found, "2026-11-30T12:00:00+00:00")
    assert msgspec.json.decode(msgspec.json.encode(file), type=type(file)) == file
    assert file.links[0].round_trip_ms == 0.1
