"""Texts of `kubectl get … -o json` (or yaml) to objects of known kinds, with the line of whatever is wrong."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.nodes import MappingNode, Node, SequenceNode, parse_documents
from pointsman.edge.manifests.json_place import Step, line_of
from pointsman.edge.manifests.kubernetes_objects import Head, NodeObject, PodObject

O = TypeVar("O", NodeObject, PodObject)  # noqa: E741
_AT = re.compile(r"^(.*?)(?: - at `\$(.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


@dataclass(frozen=True)
class Item:
    """One object, not yet read, and where it stands."""

    kind: str
    raw: msgspec.Raw | Node
    path: tuple[Step, ...]
    source: str
    text: str = ""

    def read(self, kind: type[O]) -> O:
        """The object; a field that is null is absent, as for Kubernetes. Raises ConfigError that names file, line and
        field."""
        try:
            if isinstance(self.raw, msgspec.Raw):
                return msgspec.json.decode(self.raw, type=kind)
        except msgspec.ValidationError:
            pass  # rare, and slower: perhaps only because of nulls
        whole = msgspec.json.decode(self.raw) if isinstance(self.raw, msgspec.Raw) else plain(self.raw)
        try:
            return msgspec.convert(_without_nulls(whole), kind)
        except msgspec.ValidationError as error:
            self.refuse_decoded(error)

    def refuse_decoded(self, error: msgspec.ValidationError) -> NoReturn:
        """Raises ConfigError for what msgspec found."""
        match = _AT.match(str(error))
        assert match is not None
        steps = tuple(int(number) if number else key for key, number in _STEP.findall(match[2] or ""))
        self.refuse(steps, match[1][:1].lower() + match[1][1:])

    def refuse(self, path: tuple[Step, ...], message: str) -> NoReturn:
        """Raises ConfigError with the place of a value of this object."""
        if isinstance(self.raw, msgspec.Raw):
            line: int | None = line_of(self.text, (*self.path, *path))
        else:
            line = deepest(self.raw, path)
        name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*self.path, *path))
        raise ConfigError(f"{self.source}:{line}: {name.lstrip('.') or self.kind}: {message}")


def is_kubernetes(document: Node) -> bool:
    """Whether a parsed document is a Kubernetes object rather than a file of ours."""
    return isinstance(document, MappingNode) and ("kind" in document.values or "items" in document.values)


def items_of(text: str, source: str) -> Iterator[Item]:
    """The objects of a text, those of lists one by one. Raises ConfigError where it is none."""
    if text.lstrip()[:1] == "{":
        yield from _json_items(text, source)
        return
    for document in parse_documents(text, source):
        if not isinstance(document, MappingNode):
            raise ConfigError(f"{document.place}: expected what `kubectl get nodes,pods -o json` prints")
        items = document.values.get("items")
        if isinstance(items, SequenceNode):
            for number, item in enumerate(items.values):
                kind = _kind(item) or _singular(_kind(document))
                yield Item(kind, item, ("items", number), source)
        else:
            yield Item(_kind(document), document, (), source)


def _json_items(text: str, source: str) -> Iterator[Item]:
    raw = msgspec.Raw(text.encode())
    whole = Item("document", raw, (), source, text)
    try:
        head = msgspec.json.decode(raw, type=Head)
    except msgspec.ValidationError as error:
        whole.refuse_decoded(error)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{source}: this is no valid JSON: {error}") from None
    if head.items is None:
        yield Item(head.kind, raw, (), source, text)
        return
    for number, each in enumerate(head.items):
        item = Item("", each, ("items", number), source, text)
        try:
            kind = msgspec.json.decode(each, type=Head).kind or _singular(head.kind)
        except msgspec.ValidationError as error:
            item.refuse_decoded(error)
        yield Item(kind, each, ("items", number), source, text)


def plain(node: Node) -> Any:
    """A parsed node as dicts, lists and scalars."""
    if isinstance(node, MappingNode):
        return {key: plain(child) for key, child in node.values.items()}
    if isinstance(node, SequenceNode):
        return [plain(child) for child in node.values]
    return node.value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, datetime.date):  # a time that YAML reads as one where it has no quotes
        return value.isoformat()
    return value


def _kind(node: Node) -> str:
    kind = node.values.get("kind") if isinstance(node, MappingNode) else None
    return str(plain(kind)) if kind is not None else ""


def deepest(node: Node, path: tuple[Step, ...]) -> int | None:
    """Line of the deepest value on a path that is there."""
    line = node.place.line
    for step in path:
        if isinstance(node, MappingNode) and isinstance(step, str) and step in node.values:
            line, node = node.key_places[step].line, node.values[step]
        elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.values):
            node = node.values[step]
            line = node.place.line
        else:
            break
    return line


def _singular(kind: str) -> str:
    """PodList says Pod of items that do not say it themselves."""
    return kind.removesuffix("List")
