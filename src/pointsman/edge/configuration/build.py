"""Nodes to typed sections: every fault is reported with its place, its key and what was expected."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.describe import (
    choices_of,
    expected,
    is_parsed,
    item_of,
    struct_of,
    union_members,
    value_of,
    without_annotation,
)
from pointsman.edge.configuration.key_hash import KeyHash
from pointsman.edge.configuration.nodes import MappingNode, Node, Place, ScalarNode, SequenceNode
from pointsman.edge.configuration.secret import Secret

S = TypeVar("S", bound=msgspec.Struct)

NONE_WORD = "none"
OFF = "off"


def build(node: MappingNode, section: type[S], path: str = "") -> S:
    """The section that a mapping describes. Raises ConfigError at the first fault."""
    fields = _fields(section)
    values: dict[str, Any] = {}
    for key, child in node.values.items():
        place = node.key_places[key]
        key_path = _join(path, key)
        _refuse_unknown(node, key, section, path)
        values[fields[key].name] = convert(child, fields[key].type, key_path, place)
        refuse_not_built(section, key, values[fields[key].name], f"{place}: {key_path}")
    for field in fields.values():
        if field.required and field.name not in values:
            key_path = _join(path, field.encode_name)
            raise ConfigError(f"{node.place}: {key_path} is missing; expected {expected(field.type)}")
    try:
        return section(**values)
    except KeyConflictError as problem:
        raise ConfigError(f"{_place_of(node, problem.key)}: {_join(path, problem.key)}: {problem.message}") from None


def refuse_unknown_keys(node: MappingNode, section: type[msgspec.Struct], path: str = "") -> None:
    """Raise ConfigError for the first key of a mapping that the section does not have."""
    for key in node.values:
        _refuse_unknown(node, key, section, path)


def _refuse_unknown(node: MappingNode, key: str, section: type[msgspec.Struct], path: str) -> None:
    fields = _fields(section)
    if key not in fields:
        raise ConfigError(f"{node.key_places[key]}: {_join(path, key)}: {_unknown_key(section, key, fields)}")


def convert(node: Node, kind: Any, path: str, key_place: Place) -> Any:
    """The value of one key, typed. `key_place` is where the key stands."""
    optional = type(None) in union_members(without_annotation(kind)[0])
    if optional and _says_none(node):
        return None
    section, item = struct_of(kind), item_of(kind)
    if isinstance(node, ScalarNode) and node.value is None:
        if section is None or item is not None:
            raise ConfigError(f"{key_place}: {path}: has no value; expected {expected(kind)}")
        node = MappingNode(key_place, {}, {})
    if item is not None:
        return _convert_list(node, kind, item, path)
    if value_of(kind) is not None:
        return _convert_mapping(node, kind, value_of(kind), path)
    if section is not None:
        if not isinstance(node, MappingNode):
            known = ", ".join(field.encode_name for field in msgspec.structs.fields(section))
            raise ConfigError(f"{node.place}: {path}: expected a mapping with keys such as {known}")
        return build(MappingNode(key_place, node.values, node.key_places), section, path)
    if not isinstance(node, ScalarNode):
        raise ConfigError(f"{node.place}: {path}: expected {expected(kind)}")
    return convert_scalar(node.value, kind, f"{node.place}: {path}")


def convert_scalar(value: object, kind: Any, where: str) -> Any:
    """One scalar, typed; `where` begins the message of the ConfigError that a wrong one raises."""
    bare, meta = without_annotation(kind)
    member = next(m for m in union_members(bare) if m is not type(None))
    if is_parsed(member):
        return _parse(value, member, kind, where)
    if value is False and OFF in choices_of(member):
        value = OFF  # YAML reads the word so
    if isinstance(value, str) and any(unicodedata.category(c) == "Cc" for c in value):
        raise ConfigError(f"{where}: expected text without line breaks and other control characters, not {value!r}")
    try:
        return msgspec.convert(value, Annotated[member, meta], strict=True)
    except msgspec.ValidationError:
        raise ConfigError(f"{where}: expected {expected(kind)}{_got(value, kind)}") from None


def refuse_not_built(section: type[msgspec.Struct], key: str, value: object, where: str) -> None:
    """Raise ConfigError for a value whose feature doesn't exist yet."""
    values = getattr(section, "not_built_values", {}).get(key, {})
    feature = values.get(value) if values else None
    if feature is not None:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        raise ConfigError(f"{where}: {shown}: {feature}: not built yet in 0.1; remove it")


@lru_cache
def _fields(section: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """By key; found once a section, for long files have thousands of it."""
    return {field.encode_name: field for field in msgspec.structs.fields(section)}


def _convert_list(node: Node, kind: Any, item: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(node, SequenceNode):
        raise ConfigError(f"{node.place}: {path}: expected {expected(kind)}")
    minimum = without_annotation(kind)[1].min_length
    if minimum is not None and len(node.values) < minimum:
        raise ConfigError(f"{node.place}: {path}: is empty; name at least {minimum}, or remove the key")
    return tuple(convert(child, item, f"{path}[{i}]", child.place) for i, child in enumerate(node.values))


def _convert_mapping(node: Node, kind: Any, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(node, MappingNode):
        raise ConfigError(f"{node.place}: {path}: expected {expected(kind)}")
    return {key: convert(child, value, _join(path, key), node.key_places[key]) for key, child in node.values.items()}


def _parse(value: object, parsed: Any, kind: Any, where: str) -> Any:
    try:
        return parsed.parse(value)
    except ValueError as error:
        raise ConfigError(f"{where}: expected {error}{_got(value, kind)}") from None


def _got(value: object, kind: Any) -> str:
    members = union_members(without_annotation(kind)[0])
    if Secret in members or KeyHash in members or ("@" in str(value) and ":" in str(value)):
        return ""  # the last: a URL with a user and a password, perhaps
    return f", not {value!r}"


def _says_none(node: Node) -> bool:
    return isinstance(node, ScalarNode) and (
        node.value is None or (isinstance(node.value, str) and node.value.lower() == NONE_WORD)
    )


def _unknown_key(section: type[msgspec.Struct], key: str, known: Iterable[str]) -> str:
    feature = getattr(section, "not_built", {}).get(key)
    if feature is not None:
        return f"{feature}: not built yet in 0.1; remove it"
    names = list(known)
    near = difflib.get_close_matches(key, names, 1, 0.6) or difflib.get_close_matches(
        key.replace("_", "-").lower(), names, 1, 0.6
    )
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return "unknown key; known here: " + ", ".join(names)


def _place_of(node: MappingNode, key: str) -> Place:
    """Where the key of a problem stands; for `nodes[1].name` the item, or its key if it is there."""
    place = node.place
    current: Node | None = node
    for part in key.replace("[", ".").replace("]", "").split("."):
        if isinstance(current, MappingNode):
            place = current.key_places.get(part, place)
            current = current.values.get(part)
        elif isinstance(current, SequenceNode):
            current = current.values[int(part)]
            place = current.place
    return place


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
