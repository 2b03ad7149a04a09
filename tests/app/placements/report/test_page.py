"""The report of a simulated cluster."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from tests.support.gangs import TOPOLOGY, gang, pair

from pointsman.app.placements.report.charts import charts_of
from pointsman.app.placements.report.page import Facts, cluster_report, headline, sentences, shown
from pointsman.app.placements.simulation.demand import Job
from pointsman.app.placements.simulation.outcome import MEASURES, Outcome
from pointsman.app.placements.simulation.run import run_cluster
from pointsman.app.placements.simulation.scheduler import GangScheduler
from pointsman.core.placement.cluster import Cluster, Node

FACTS = Facts("A test & more", 4, 32, 1, 0.9, TOPOLOGY.names, (("Outages", "none"),))


def outcome(*jobs: Job, until_s: float = 3_600) -> Outcome:
    nodes = tuple(Node(f"n{at}", 8, labels={"rack": f"r{at // 2}", "zone": "z"}) for at in range(4))
    return run_cluster(Cluster(nodes), TOPOLOGY, jobs, (), GangScheduler(), until_s)


@pytest.fixture(scope="module")
def two() -> dict[str, list[Outcome]]:
    first = outcome(Job(pair("a", 1, 2), 900), Job(gang("b", 3), 900))
    second = outcome(Job(gang("c", 1), 900))
    return {"whole <gangs>": [first, second], "others": [second, first]}


class _Tags(HTMLParser):
    """Every tag that is opened is closed again."""

    EMPTY = ("meta", "br", "line", "rect", "circle", "polyline", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def test_the_page_is_one_whole_file_that_loads_nothing(two: dict[str, list[Outcome]]) -> None:
    page = cluster_report(FACTS, two)
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    assert not tags.seen & {"script", "link", "img", "iframe"}
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "whole &lt;gangs&gt;" in page
    assert "whole <gangs>" not in page
    for measure in MEASURES.values():
        assert measure.title in page


def test_charts_are_well_formed_and_those_without_anything_to_show_are_left_out(
    two: dict[str, list[Outcome]],
) -> None:
    charts = list(charts_of(TOPOLOGY.names, two))
    for chart in charts:
        ElementTree.fromstring(chart.svg)
    titles = [chart.title for chart in charts]
    assert "Prefill and decode in the same rack" in titles
    assert not any("idle" in title for title in titles)
    alone = [chart.title for chart in charts_of(TOPOLOGY.names, {"one": [outcome()]})]
    assert not any("Prefill" in title for title in alone)


def test_the_first_lines_say_what_came_of_it(two: dict[str, list[Outcome]]) -> None:
    assert headline(two) == "3 of 3 gangs were placed whole"
    assert headline({"one": [outcome()]}) == "No gang came"
    assert sentences(two)[0] == "With whole <gangs>, no gang ever held a part of itself."


def test_numbers_read_well() -> None:
    assert shown(MEASURES["placed_share"], 0.5) == "50.0 %"
    assert shown(MEASURES["wait_p99_s"], 30) == "30 s"
    assert shown(MEASURES["wait_p99_s"], 9_000) == "2.5 h"
    assert shown(MEASURES["racks"], float("nan")) == "–"
