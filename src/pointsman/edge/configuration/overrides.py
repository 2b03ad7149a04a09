"""Values from the command line, put over the tree and checked like those of the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.build import convert, refuse_not_built
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.nodes import Place, plain_node
from pointsman.edge.configuration.tree import ConfigTree


@dataclass(frozen=True, slots=True)
class Override:
    """One flag's value for one key."""

    flag: str
    section: str
    """Key of the section, for example `control-plane`."""
    key: str
    value: object


def apply_overrides(tree: ConfigTree, overrides: Sequence[Override]) -> ConfigTree:
    """The tree with the flags' values. Raises ConfigError that names the flag."""
    changed: dict[str, dict[str, Any]] = {}
    flags: dict[str, str] = {}
    for override in overrides:
        section = getattr(tree, _attribute(override.section))
        field = next(f for f in msgspec.structs.fields(section) if f.encode_name == override.key)
        place = Place(override.flag)
        path = f"{override.section}.{override.key}"
        value = convert(plain_node(override.value, place), field.type, path, place)
        refuse_not_built(type(section), override.key, value, f"{override.flag}: {path}")
        changed.setdefault(override.section, {})[field.name] = value
        flags.setdefault(override.section, override.flag)
        flags[path] = override.flag
    sections = {
        _attribute(name): _replace(getattr(tree, _attribute(name)), name, values, flags)
        for name, values in changed.items()
    }
    return msgspec.structs.replace(tree, **sections)


def engine_override(urls: Sequence[str]) -> Override:
    """`--engine URL…`: these engines instead of those of the file."""
    return Override("--engine", "execution-group", "nodes", [{"url": url} for url in urls])


def _replace(section: Any, name: str, values: dict[str, Any], flags: dict[str, str]) -> Any:
    try:
        return msgspec.structs.replace(section, **values)
    except KeyConflictError as problem:
        flag = flags.get(f"{name}.{problem.key.partition('[')[0]}", flags[name])
        raise ConfigError(f"{flag}: {name}.{problem.key}: {problem.message}") from None


def _attribute(section: str) -> str:
    return section.replace("-", "_")
