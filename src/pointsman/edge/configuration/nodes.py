"""YAML text to nodes that remember their lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import yaml

from pointsman.core.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: `file:line`, or the flag that gave it."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class MappingNode:
    """Keys and values; each key with its own place."""

    place: Place
    values: dict[str, Node]
    key_places: dict[str, Place]


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A list."""

    place: Place
    values: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A text, number, truth value or null."""

    place: Place
    value: object


Node = MappingNode | SequenceNode | ScalarNode


T = TypeVar("T")
Loader: TypeAlias = "yaml.SafeLoader | yaml.CSafeLoader"
_FAST: type[Loader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Six times as fast; where PyYAML was built without it the other one will do."""


def parse_yaml(text: str, source: str, example: str = "routing:") -> MappingNode:
    """The nodes of one YAML document; an empty one is an empty mapping. Raises ConfigError with the line.

    `example`: a section that may stand at the top.
    """
    node = _explained(text, source, _read_document)
    if isinstance(node, ScalarNode) and node.value is None:
        return MappingNode(node.place, {}, {})
    if not isinstance(node, MappingNode):
        raise ConfigError(f"{node.place}: expected sections, such as {example!r}, at the top")
    return node


def parse_documents(text: str, source: str) -> tuple[Node, ...]:
    """The nodes of all YAML documents of a text that may be long, empty ones left out. Raises ConfigError likewise."""
    return _explained(text, source, _read_documents)


def plain_node(value: object, place: Place) -> Node:
    """Nodes of values that were not read from YAML, all at one place."""
    if isinstance(value, dict):
        values = {str(key): plain_node(child, place) for key, child in value.items()}
        return MappingNode(place, values, dict.fromkeys(values, place))
    if isinstance(value, list):
        return SequenceNode(place, tuple(plain_node(item, place) for item in value))
    return ScalarNode(place, value)


def _explained(text: str, source: str, read: Callable[[str, str], T]) -> T:
    try:
        return read(text, source)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigError(f"{Place(source, line)}: this is no valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: this is no valid YAML: {error}".replace("\n", " ")) from None
    except RecursionError:
        raise ConfigError(f"{source}: this is nested too deeply") from None


def _read_documents(text: str, source: str) -> tuple[Node, ...]:
    loader = _FAST(text)
    found = []
    try:
        while loader.check_node():  # at the end the fast parser has no answer for get_node
            root = loader.get_node()
            assert root is not None
            node = _Reader(loader, source).read(root)
            if not (isinstance(node, ScalarNode) and node.value is None):
                found.append(node)
    finally:
        loader.dispose()
    return tuple(found)


def _read_document(text: str, source: str) -> Node:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        return MappingNode(Place(source), {}, {}) if root is None else _Reader(loader, source).read(root)
    finally:
        loader.dispose()


class _Reader:
    """Turns PyYAML's nodes into ours, once each; refuses what loops."""

    def __init__(self, loader: Loader, source: str) -> None:
        self._loader = loader
        self._source = source
        self._done: dict[int, Node] = {}
        self._open: set[int] = set()

    def read(self, node: yaml.Node) -> Node:
        known = self._done.get(id(node))
        if known is not None:
            return known
        if id(node) in self._open:
            raise ConfigError(f"{self._place(node)}: this alias contains itself")
        self._open.add(id(node))
        made = self._make(node)
        self._open.discard(id(node))
        self._done[id(node)] = made
        return made

    def _make(self, node: yaml.Node) -> Node:
        place = self._place(node)
        if isinstance(node, yaml.MappingNode):
            values: dict[str, Node] = {}
            key_places: dict[str, Place] = {}
            for key, key_place, value in self._pairs(node):
                if key in values:
                    raise ConfigError(f"{key_place}: {key} is given twice (first on line {key_places[key].line})")
                values[key] = self.read(value)
                key_places[key] = key_place
            return MappingNode(place, values, key_places)
        if isinstance(node, yaml.SequenceNode):
            return SequenceNode(place, tuple(self.read(child) for child in node.value))
        return ScalarNode(place, self._scalar(node, place))

    def _scalar(self, node: yaml.Node, place: Place) -> object:
        try:
            value: object = self._loader.construct_object(node, deep=True)
        except ValueError as error:
            raise ConfigError(f"{place}: {node.value!r} can't be read: {error}") from None
        return value

    def _pairs(self, node: yaml.MappingNode) -> Iterator[tuple[str, Place, yaml.Node]]:
        for key, value in node.value:
            place = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{place}: a key must be plain text")
            yield str(key.value), place, value

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._source, node.start_mark.line + 1)
