from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pointsman.edge.node import survey as survey_room
from pointsman.edge.node.client import NodeClient, NodeError
from pointsman.edge.node.documents import NodeFacts, Probed, ProbeOrder
from pointsman.edge.node.survey import Member, Pair, Survey, ask_all, survey
from pointsman.edge.transfer.probe.messages import LinkProbe
from support.probed_links import probe


class Nodes(NodeClient):
    """Nodes that answer what a test says, and keep who was busy at once."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals: dict[tuple[str, str], list[NodeError]] = {}
        self.running: set[str] = set()
        self.most = 0
        self.order: list[tuple[str, str]] = []
        self.away: set[str] = set()
        self.asked: list[str] = []

    async def probe(self, url: str, order: ProbeOrder, limit_s: float) -> Probed:
        assert not {url, order.target} & self.running, "two probes at one node"
        self.running |= {url, order.target}
        self.most = max(self.most, len(self.running) // 2)
        await asyncio.sleep(0.001)
        self.running -= {url, order.target}
        refusals = self.refusals.get((url, order.target), [])
        if refusals:
            raise refusals.pop(0)
        self.order.append((url, order.target))
        return Probed(probe(1.0, 2.0))

    async def facts(self, url: str) -> Any:
        self.asked.append(url)
        if url in self.away:
            raise NodeError(url, "is away")
        return NodeFacts("1", "h", ("tcp",))


def members(count: int) -> list[Member]:
    return [Member(f"n{i}", f"http://n{i}:1") for i in range(count)]


async def surveyed(nodes: Nodes, count: int = 4, **changes: Any) -> Survey:
    return await survey(nodes, members(count), changes.pop("unreachable", {}), ProbeOrder, **changes)


async def test_each_pair_is_probed_once_and_gives_two_directions() -> None:
    nodes, told = Nodes(), list[Pair]()
    found = await surveyed(nodes, told=told.append)
    assert nodes.most == 1
    assert len(nodes.order) == len(found.pairs) == len(told) == 6
    directions = list(found.directions())
    assert len({(d.source, d.target) for d in directions}) == len(directions) == 12
    assert {(d.is_back, d.largest.gb_per_s) for d in directions} == {(False, 1.0), (True, 2.0)}
    assert not found.failures


async def test_several_pairs_at_once_share_no_node() -> None:
    nodes = Nodes()
    await surveyed(nodes, 6, at_once=3)
    assert nodes.most in (2, 3)
    assert len(nodes.order) == 15


async def test_nodes_that_do_not_answer_are_left_out() -> None:
    nodes = Nodes()
    nodes.away = {"http://n0:1"}
    found = await surveyed(nodes, unreachable={"n0": "it is away"})
    assert len(found.pairs) == 3
    assert found.unreachable == {"n0": "it is away"}
    assert isinstance((await ask_all(nodes, ["http://n0:1"]))["http://n0:1"], NodeError)


async def test_a_node_that_dies_in_the_middle_costs_its_pairs_alone() -> None:
    nodes = Nodes()
    nodes.refusals["http://n0:1", "http://n1:1"] = [NodeError("http://n0:1", "hung up in the middle")]
    found = await surveyed(nodes, 3)
    assert [(pair.one, pair.other) for pair in found.failures] == [("n0", "n1")]
    assert "hung up" in found.failures[0].error
    assert len(list(found.directions())) == 4


async def test_a_node_that_stands_still_costs_one_probe_and_then_a_question_a_pair() -> None:
    nodes = Nodes()
    nodes.refusals["http://n0:1", "http://n1:1"] = [NodeError("http://n0:1", "did not answer within 136 s")]
    nodes.away = {"http://n0:1"}
    found = await surveyed(nodes, 4)
    assert [(pair.one, pair.other) for pair in found.failures] == [("n0", "n1"), ("n0", "n2"), ("n0", "n3")]
    assert [pair.error for pair in found.failures[1:]] == ["node http://n0:1: is away"] * 2
    assert [one for one, _ in nodes.order] == ["http://n1:1", "http://n1:1", "http://n2:1"]
    assert nodes.asked.count("http://n0:1") == 3


async def test_a_node_that_is_back_is_probed_again() -> None:
    nodes = Nodes()
    nodes.refusals["http://n0:1", "http://n1:1"] = [NodeError("http://n0:1", "hung up in the middle")]
    nodes.away = {"http://n0:1"}
    found = await surveyed(nodes, 3, told=lambda pair: nodes.away.clear())
    assert [(pair.one, pair.other) for pair in found.failures] == [("n0", "n1")]


async def test_a_busy_node_is_asked_again_for_as_long_as_a_probe_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_room, "_BUSY_S", 0.0)
    nodes = Nodes()
    busy = [NodeError("http://n0:1", "busy", 409) for _ in range(30)]
    nodes.refusals["http://n0:1", "http://n1:1"] = busy[:12]
    assert not (await surveyed(nodes, 2)).failures
    nodes.refusals["http://n0:1", "http://n1:1"] = busy
    assert (await surveyed(nodes, 2)).failures[0].error == "node http://n0:1: busy"


async def test_half_a_probe_is_a_failure_and_a_direction() -> None:
    found = Survey(
        tuple(members(2)),
        {},
        (Pair("n0", "n1", LinkProbe("tcp", 0.1, probe(1.0).forth, broke="it hung up")),),
    )
    assert len(found.failures) == 1
    assert [(d.source, d.target) for d in found.directions()] == [("n0", "n1")]
