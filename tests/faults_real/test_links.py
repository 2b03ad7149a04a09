"""Machines in network namespaces whose links are shaped: what `doctor links` measures, and a front end learns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from support.running import Running
from support.shaped_network import ShapedNetwork

pytestmark = pytest.mark.faults

TOKEN = {"POINTSMAN_NODE_TOKEN": "a-token-for-tests"}
RATES = {"a": 1_000, "b": 1_000, "c": 50}
"""Mb/s of the machines' links."""
TRIES = 6
"""Another process may have had the processor."""
_NEAR = 0.2
_NEAR_LEARNED = 0.25
_WHAT_TCP_NEEDS = 2.0
"""How much faster an unshaped link has to be for a shaped one's rate to be the shaping's."""

Start = Callable[..., Running]


@pytest.fixture
def network() -> Iterator[ShapedNetwork]:
    why_not = ShapedNetwork.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    with ShapedNetwork() as network:
        yield network


@pytest.fixture
def start(network: ShapedNetwork, tmp_path: Path) -> Iterator[Start]:
    running: list[Running] = []

    def start(machine: str, *arguments: str) -> Running:
        running.append(Running(arguments, tmp_path, TOKEN, network.prefix(machine)))
        return running[-1]

    yield start
    for process in reversed(running):
        process.close()


def nodes_of(network: ShapedNetwork, start: Start, names: Iterable[str], **rates: int | None) -> dict[str, str]:
    """Nodes on new machines, by name; their URLs."""
    addresses = {name: network.add(name, rates[name]) for name in names}
    running = {name: start(name, "node", "--listen", f"{address}:8090") for name, address in addresses.items()}
    for process in running.values():
        process.line("node at")
    return {name: f"http://{address}:8090" for name, address in addresses.items()}


def measured(start: Start, file: Path, urls: dict[str, str], *arguments: str) -> tuple[int, dict[tuple[str, str], Any]]:
    """Status of `doctor links` on the first machine, and what it says of each direction; nothing if a probe failed."""
    named = [part for name, url in urls.items() for part in ("--node", f"{name}={url}")]
    first = next(iter(urls))
    process = start(first, "doctor", "links", *named, "--transport", "tcp", "--json", str(file), *arguments)
    status = process.process.wait(240)
    assert status in (0, 1), process.rest()
    document = json.loads(file.read_text())
    if document["failures"]:
        return status, {}
    return status, {(link["source"], link["target"]): link for link in document["links"]}


def off(
    links: dict[tuple[str, str], Any], rates: Mapping[str, int], near: float = _NEAR, size: str | None = None
) -> dict[tuple[str, str], float]:
    """Directions whose rate, of that size, is not that of the slower of both links, and how many times that it is."""
    found = {}
    for source, target in permutations(rates, 2):
        told = links[source, target]["gb_per_s"] if (source, target) in links else 0.0
        times = (told[size] if size and told else told) / (min(rates[source], rates[target]) / 8000)
        if abs(times - 1) > near:
            found[source, target] = times
    return found


def test_rates_are_measured_as_they_are_shaped_and_a_front_end_learns_them(
    network: ShapedNetwork, start: Start, tmp_path: Path
) -> None:
    urls = nodes_of(network, start, "abc", **RATES)
    serve = start("a", "serve", "--wait-for-engines", "--port", "0", "--admin-port", "0")
    admin_url = serve.line("pointsman serves").split("admin: ")[1].split(";")[0]
    save, arguments = tmp_path / "links.yaml", ("--seconds", "0.5", "--save", str(tmp_path / "links.yaml"))
    for _ in range(TRIES):
        status, links = measured(start, tmp_path / "links.json", urls, *arguments, "--admin", admin_url)
        # What a front end believes follows the newest measurements, but not at once.
        wrong = off(links, RATES) or off(known(start, tmp_path, network, admin_url), RATES, _NEAR_LEARNED, "16MiB")
        if not wrong:
            break
    assert not wrong
    assert len(links) == 6
    assert status == 1  # c is slower than the others, and that is said
    findings = json.loads((tmp_path / "links.json").read_text())["findings"]
    assert [finding["text"].partition(",")[0] for finding in findings] == ["c: all 4 links from and to it are slow"]
    with_file = start("a", "serve", "--wait-for-engines", "--config", str(configured(tmp_path, save)))
    admin_url = with_file.line("pointsman serves").split("admin: ")[1].split(";")[0]
    assert off(known(start, tmp_path, network, admin_url), RATES, _NEAR_LEARNED, "16MiB") == {}


def test_rates_up_to_ten_gigabits_are_measured_as_far_as_the_machine_moves_more(
    network: ShapedNetwork, start: Start, tmp_path: Path
) -> None:
    quick = ("--seconds", "0.5")
    free = nodes_of(network, start, "fg", f=None, g=None)
    for number in range(TRIES):
        _, unshaped = measured(start, tmp_path / "free.json", free, *quick)
        most = max((link["gb_per_s"] for link in unshaped.values()), default=1.0)
        rate = min(10_000, int(most * 8000 / _WHAT_TCP_NEEDS))
        names = f"h{number}", f"i{number}"
        rates = dict.fromkeys(names, rate)
        _, links = measured(start, tmp_path / "links.json", nodes_of(network, start, names, **rates), *quick)
        wrong = off(links, rates)
        if not wrong:
            return
    pytest.fail(f"{wrong} of {rate} Mb/s, where {most:.2g} GB/s are moved without shaping")


def configured(folder: Path, links: Path) -> Path:
    config = folder / "pointsman.yaml"
    config.write_text(f"control-plane: {{listen_port: 0, admin_port: 0}}\nlinks: {{file: {links}}}\n")
    return config


def known(start: Start, folder: Path, network: ShapedNetwork, admin_url: str) -> dict[tuple[str, str], Any]:
    """What a front end on machine a believes; asked from there, for its port is of that machine only."""
    script = folder / "ask.py"
    script.write_text("import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())")
    asked = [*network.prefix("a"), sys.executable, str(script), f"{admin_url}/v1/links"]
    answer = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout
    return {(link["source"], link["target"]): link for link in json.loads(answer)["links"]}
