from __future__ import annotations

import re
from pathlib import Path

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.link_priors import USUAL_PRIORS
from pointsman.core.timing.links import DEFAULT_LINK
from pointsman.edge.configuration.links import link_priors, place_of
from pointsman.edge.configuration.links_file import LinksFile, SavedLink, SavedSample, load_links, save_links
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree

LEVELS = "control-plane: {topology_levels: [host, rack, zone]}\n"
FILE = LinksFile(
    version=1,
    measured_at="2026-11-30T12:00:00+00:00",
    links=(
        SavedLink(
            source="10.0.0.1",
            target="10.0.0.2",
            round_trip_ms=0.1,
            samples=(SavedSample(size_bytes=65536, took_ms=0.3), SavedSample(size_bytes=1 << 20, took_ms=2.5)),
        ),
        SavedLink(source="10.0.0.2", target="10.0.0.1", samples=(SavedSample(size_bytes=65536, took_ms=0.3),)),
    ),
)


def tree(text: str) -> ConfigTree:
    return load_text(text, "pointsman.yaml", ConfigTree)


def test_priors_are_those_of_levels_by_their_names() -> None:
    links = tree(LEVELS + "links: {priors: {host: '300GB/s:0.02ms', zone: '25gbe:1ms', network: 1GB/s}}").links
    priors = link_priors(links, ("host", "rack", "zone"))
    assert priors.node.gb_per_s == 300
    assert priors.levels[0] == USUAL_PRIORS.levels[0]
    assert (priors.levels[1].gb_per_s, priors.levels[1].floor_ms) == (2.5, 1.0)
    assert priors.network.gb_per_s == 1


def test_levels_without_machines_begin_beyond_them() -> None:
    links = tree("control-plane: {topology_levels: [rack]}\nlinks: {priors: {node: roce, rack: 100gbe}}").links
    priors = link_priors(links, ("rack",))
    assert (priors.node.name, priors.levels[0].name, priors.network) == ("roce", "100gbe", DEFAULT_LINK)
    assert len(priors.levels) == 1


def test_without_a_word_priors_are_the_usual_ones() -> None:
    assert link_priors(ConfigTree().links, ()) == USUAL_PRIORS


@pytest.mark.parametrize(
    ("levels", "topology", "place"),
    [
        (("host", "rack"), {"host": "a", "rack": "r"}, ("a", "r")),
        (("host", "rack"), {"rack": "r"}, ("", "r")),
        (("rack", "zone"), {"rack": "r", "zone": "z"}, ("", "r", "z")),
        (("rack",), {}, ()),
    ],
)
def test_the_first_place_is_the_machine(
    levels: tuple[str, ...], topology: dict[str, str], place: tuple[str, ...]
) -> None:
    assert place_of(levels, topology) == place


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("links: {priors: {rack: roce}}", "links.priors.rack: rack is none of control-plane.topology_levels"),
        ("links: {priors: {node: fast}}", "links.priors.node: expected a link by name or speed"),
        ("links: {priors: {node: 0GB/s}}", "gb_per_s must be above 0"),
        ("links: {speed: 1}", "links.speed: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        tree(text)
    assert str(refused.value).startswith("pointsman.yaml:1")


@pytest.mark.parametrize("name", ["links.yaml", "links.json"])
def test_a_file_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save_links(path, FILE)
    save_links(path, FILE)
    assert load_links(path) == FILE
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 2\nlinks: []", ":1: version: "),
        ("version: 2\nhops: 3\nlinks: []", ":1: version: this is a file of version 2, and 1 is known here"),
        ('{"measured_at": null,\n"version": 3, "edges": []}', ":2: version: this is a file of version 3"),
        ("links: []", "version is missing"),
        ("version: 1\nlinks:\n- {source: a, target: b, samples: []}", ":3: links[0].samples: is empty"),
        ("version: 1\nlinks:\n- {source: a, target: b, samples: [{size_bytes: -1, took_ms: 1}]}", "size_bytes"),
        ("version: 1\nlinks:\n- {source: a, target: b, samples: [{size_bytes: 1, took_ms: 0}]}", "took_ms"),
        (
            "version: 1\nlinks:\n" + "- {source: a, target: b, samples: [{size_bytes: 1, took_ms: 1}]}\n" * 2,
            "links[0] is a → b too",
        ),
    ],
)
def test_a_file_that_can_not_be_used_is_refused_by_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "links.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_links(path)


def test_files_that_can_not_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        load_links(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="can't be written"):
        save_links(tmp_path / "none" / "links.yaml", FILE)
