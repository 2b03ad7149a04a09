"""A configuration file to the typed tree."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.build import build
from pointsman.edge.configuration.nodes import parse_yaml
from pointsman.edge.configuration.tree import ConfigTree

S = TypeVar("S", bound=msgspec.Struct)

_MOST_BYTES = 16 * 2**20


def load_text(text: str, source: str, section: type[S]) -> S:
    """Read one YAML document as `section`; `source` names it in messages. Raises ConfigError."""
    return build(parse_yaml(text, source), section)


def load_file(path: Path) -> ConfigTree:
    """Read the whole configuration. Raises ConfigError that names the file, the line and the key."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{path}: is longer than {_MOST_BYTES} bytes; is it the configuration?")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8 text") from None
    return load_text(text, str(path), ConfigTree)
