"""Reading of foreign manifests: what is used is ticked off, so that what is left can be told."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.nodes import MappingNode, Node, Place, ScalarNode
from pointsman.edge.manifests.kubernetes_documents import plain


@dataclass(frozen=True)
class Note:
    """Something that a converted file does not carry over, or carries over in another way."""

    place: Place
    path: str
    text: str
    matters: bool
    """Whether placement would differ for it; otherwise it is of the running of pods only."""

    def __str__(self) -> str:
        return f"{self.place}: {self.path}: {self.text}"


@dataclass
class Notes:
    """Of one deployment, in the order they came up."""

    all: list[Note] = field(default_factory=list)

    def add(self, place: Place, path: str, text: str, *, matters: bool = True) -> None:
        """One more."""
        self.all.append(Note(place, path, text, matters))


class Fields:
    """A mapping whose keys are ticked off as they are asked for."""

    def __init__(self, node: MappingNode, path: str, notes: Notes) -> None:
        self.node = node
        self.path = path
        self.notes = notes
        self._asked: set[str] = set()

    @classmethod
    def of(cls, node: Node | None, path: str, place: Place, notes: Notes) -> Fields:
        """Of a node that has to be a mapping, or is not there. Raises ConfigError."""
        if node is None or (isinstance(node, ScalarNode) and node.value is None):
            return cls(MappingNode(place, {}, {}), path, notes)
        if not isinstance(node, MappingNode):
            raise ConfigError(f"{node.place}: {path}: expected keys and values, not {plain(node)!r}")
        return cls(node, path, notes)

    def __bool__(self) -> bool:
        return bool(self.node.values)

    def __contains__(self, key: str) -> bool:
        return key in self.node.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.node.values)

    def place(self, key: str) -> Place:
        """Where a key stands."""
        return self.node.key_places.get(key, self.node.place)

    def at(self, key: str) -> str:
        """The path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Node | None:
        """The value, ticked off."""
        self._asked.add(key)
        return self.node.values.get(key)

    def fields(self, key: str) -> Fields:
        """A mapping below; an empty one if it is not there. Raises ConfigError if it is something else."""
        return Fields.of(self.get(key), self.at(key), self.place(key), self.notes)

    def text(self, key: str, *, may_be_empty: bool = False) -> str | None:
        """A text, not empty unless it may be. Raises ConfigError for anything else that is there."""
        node = self.get(key)
        if node is None or (isinstance(node, ScalarNode) and node.value is None):
            return None
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str) or not (node.value or may_be_empty):
            self.refuse(key, f"expected text, not {plain(node)!r}")
        return node.value

    def integer(self, key: str, least: int) -> int | None:
        """A whole number. Raises ConfigError for anything else that is there."""
        node = self.get(key)
        if node is None or (isinstance(node, ScalarNode) and node.value is None):
            return None
        value = plain(node)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(key, f"expected an integer of at least {least}, not {value!r}")
        return value

    def truth(self, key: str) -> bool | None:
        """True or false. Raises ConfigError for anything else that is there."""
        node = self.get(key)
        if node is None:
            return None
        value = plain(node)
        if not isinstance(value, bool):
            self.refuse(key, f"expected true or false, not {value!r}")
        return value

    def refuse(self, key: str, message: str) -> NoReturn:
        """Raises ConfigError with the place of a key."""
        raise ConfigError(f"{self.place(key)}: {self.at(key)}: {message}")

    def note(self, key: str, text: str, *, matters: bool = True) -> None:
        """Tells something about a key, and ticks it off."""
        self._asked.add(key)
        self.notes.add(self.place(key), self.at(key), text, matters=matters)

    def rest(self, harmless: Collection[str] = ()) -> None:
        """Tells all keys that nobody asked for."""
        for key in self.node.values:
            if key in self._asked:
                continue
            if key in harmless:
                self.note(key, "left out: it has no part in placement", matters=False)
            else:
                self.note(key, "left out: there is nothing like it here")
