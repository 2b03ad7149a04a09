from __future__ import annotations

from itertools import combinations

import pytest

from pointsman.edge.node.verdicts import Finding, verdicts
from pointsman.edge.transfer.probe.messages import LinkProbe
from support.probed_links import directions, probe

PORTS = (100.0, 100.0)


def judged(probes: dict[tuple[str, str], LinkProbe | str]) -> tuple[Finding, ...]:
    return verdicts(directions(probes))


def fleet(*names: str, rate: float = 3.0, **changes: LinkProbe) -> dict[tuple[str, str], LinkProbe | str]:
    found: dict[tuple[str, str], LinkProbe | str] = {pair: probe(rate, ports=PORTS) for pair in combinations(names, 2)}
    return found | {(pair[0], pair[1]): changed for pair, changed in changes.items()}


def test_links_near_their_ports_speed_are_fine() -> None:
    assert judged({("a", "b"): probe(2.4, ports=(25.0, 25.0))}) == ()
    assert judged({("a", "b"): probe(11.0, ports=PORTS)}) == ()


def test_a_link_far_below_its_port_is_named_with_share_speed_and_what_to_do() -> None:
    findings = judged({("10.0.0.3", "10.0.0.4"): probe(0.11, 9.0, ports=PORTS)})
    assert [finding.links for finding in findings] == [(("10.0.0.3", "10.0.0.4"),)]
    assert findings[0].text == (
        "10.0.0.3 → 10.0.0.4: 0.11 GB/s over eth1, which says 100 Gb/s: 0.88 %; negotiated at 1 GbE? Look at cable, "
        "switch port and shaping, and over which interface the address goes"
    )


def test_the_slower_of_both_ports_is_what_a_link_is_measured_by() -> None:
    assert judged({("a", "b"): probe(0.3, ports=(100.0, 10.0))}) == ()
    assert judged({("a", "b"): probe(0.3, ports=(100.0, None))})[0].links == (("a", "b"),)


@pytest.mark.parametrize(
    "link",
    [
        probe(0.1, ports=(None, None)),
        probe(0.1, ports=PORTS, is_virtual=True),
        probe(0.1, ports=PORTS, transport="shm"),
    ],
    ids=["no speed", "virtual", "memory"],
)
def test_where_no_card_says_a_speed_none_is_asked_for(link: LinkProbe) -> None:
    assert judged({("a", "b"): link}) == ()


def test_cards_faster_than_one_connection_are_asked_for_ten_gigabits() -> None:
    assert judged({("a", "b"): probe(1.3, ports=(400.0, 400.0))}) == ()
    assert "negotiated at 10 GbE?" in judged({("a", "b"): probe(1.17, ports=(400.0, 400.0))})[0].text


def test_a_rate_that_is_no_ports_speed_points_elsewhere() -> None:
    assert "errors and drops" in judged({("a", "b"): probe(0.75, ports=PORTS)})[0].text


def test_a_port_that_says_itself_that_it_is_slower_than_the_others_is_one_finding() -> None:
    slow = probe(0.11, ports=(1.0, 100.0))
    probes = fleet("a", "b", "c") | {("d", other): slow for other in "abc"}
    findings = judged(probes)
    assert len(findings) == 1
    assert findings[0].text.startswith("d: eth1 runs at 1 Gb/s, those of the other machines at 100: negotiated down?")
    assert len(findings[0].links) == 6


def test_two_ports_that_differ_say_nothing_of_which_is_wrong() -> None:
    assert judged({("a", "b"): probe(0.11, ports=(1.0, 100.0))}) == ()


def test_a_machine_all_of_whose_links_are_slow_is_one_finding_even_of_three() -> None:
    slow = probe(0.006)
    findings = judged({("a", "b"): probe(0.12), ("a", "c"): slow, ("b", "c"): slow})
    assert len(findings) == 1
    assert findings[0].text.startswith(
        "c: all 4 links from and to it are slow, 0.006 GB/s at best where other machines"
    )


def test_a_link_far_below_its_siblings_is_named() -> None:
    probes = fleet("a", "b", "c", "d") | {("a", "b"): probe(0.9, 3.0)}
    findings = judged(probes)
    assert [finding.links for finding in findings] == [(("a", "b"),)]
    assert "others have 3 GB/s: 30 %" in findings[0].text


def test_a_direction_far_below_the_other_one_is_named() -> None:
    findings = judged({("a", "b"): probe(1.0, 0.2)})
    assert [finding.links for finding in findings] == [(("b", "a"),)]
    assert "but 1 GB/s the other way" in findings[0].text


def test_each_link_is_named_once() -> None:
    probes = fleet("a", "b", "c", "d") | {("a", "b"): probe(0.1, 3.0, ports=PORTS)}
    assert [finding.links for finding in judged(probes)] == [(("a", "b"),)]


def test_memory_of_one_host_is_no_sibling_of_its_network() -> None:
    memory = {(f"{i}", f"{j}"): probe(30.0, transport="shm") for i, j in combinations("abcd", 2)}
    assert judged(memory | {("e", "f"): probe(1.0)}) == ()


def test_nothing_measured_is_nothing_wrong() -> None:
    assert judged({("a", "b"): "it hung up"}) == ()
