"""Which nodes `pointsman doctor links` asks, and what their machines are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.links import place_of
from pointsman.edge.configuration.links_file import MOST_NAME
from pointsman.edge.configuration.loader import load_file
from pointsman.edge.node.client import NodeError
from pointsman.edge.node.documents import NodeFacts
from pointsman.edge.node.survey import Member


def wanted_nodes(nodes: Sequence[str], config: Path | None, node_port: int) -> list[tuple[str, str]]:
    """Names, empty where none was given, and URLs. Raises ConfigError where there are not two to measure between."""
    found = [_named_url(text) for text in nodes]
    if config is not None:
        found += _of_configuration(config, node_port)
    urls: dict[str, str] = {}
    for name, url in found:
        if url in urls and urls[url] != name and name and urls[url]:
            raise ConfigError(f"--node {url}: is given twice, as {urls[url]} and as {name}; give it once")
        urls[url] = urls.get(url) or name
    if len(urls) < 2:
        raise ConfigError(
            f"{len(urls) or 'no'} node{'' if len(urls) == 1 else 's'}: links are between two at least; give --node URL "
            "twice or more, or --config FILE whose engines are on several machines"
        )
    return [(name, url) for url, name in urls.items()]


def named(
    wanted: Sequence[tuple[str, str]], facts: Mapping[str, NodeFacts | NodeError]
) -> tuple[list[Member], dict[str, str]]:
    """All with their names: given here, else their own, else their URL's host; and who does not answer, by name.

    Raises ConfigError where two have one name.
    """
    members: list[Member] = []
    unreachable: dict[str, str] = {}
    by_name: dict[str, str] = {}
    for given, url in wanted:
        said = facts[url]
        name = given or (said.name if isinstance(said, NodeFacts) else "") or host_of(url)
        if name in by_name and isinstance(said, NodeError):
            name = url  # it takes no part, and why it does not answer is what there is to say
        elif name in by_name:
            raise ConfigError(
                f"nodes {by_name[name]} and {url} are both called {name}: if that is one machine, ask one of them, "
                "else name them as front ends know their machines: --node NAME=URL"
            )
        by_name[name] = url
        members.append(Member(name, url))
        if isinstance(said, NodeError):
            unreachable[name] = str(said)
    return members, unreachable


def host_of(url: str) -> str:
    """By which front ends know a machine that has no other name."""
    return urlsplit(url).hostname or url


def _named_url(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals:
        name, url = "", text
    if len(name.strip()) > MOST_NAME:
        raise ConfigError(f"--node: a name of {len(name.strip())} characters; give at most {MOST_NAME}")
    try:
        return name.strip(), str(EngineUrl.parse(url))
    except ValueError:
        raise ConfigError(f"--node {text}: expected the URL of a node, such as http://10.0.0.1:8090") from None


def _of_configuration(config: Path, node_port: int) -> list[tuple[str, str]]:
    tree = load_file(config)
    found: dict[str, str] = {}
    for node in tree.execution_group.nodes:
        host = host_of(str(node.url))
        place = place_of(tree.control_plane.topology_levels, node.topology)
        name = place[0] if place and place[0] else host
        found.setdefault(name, f"http://[{host}]:{node_port}" if ":" in host else f"http://{host}:{node_port}")
    if not found:
        raise ConfigError(f"--config {config}: execution-group.nodes names no engines; give --node URL instead")
    return list(found.items())
