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


def load_text(text: str, source: str, section: type[S], example: str = "routing:") -> S:
    """Read one YAML document as `section`; `source` names it in messages, `example` what may stand at its top.

    Raises ConfigError.
    """
    return build(parse_yaml(text, source, example), section)


def load_file(path: Path) -> ConfigTree:
    """Read the whole configuration. Raises ConfigError that names the file, the line and the key."""
    return load_text(read_text(path, "the configuration", _MOST_BYTES), str(path), ConfigTree)


def read_text(path: Path, what: str, most_bytes: int) -> str:
    """The text of a file that should be `what`. Raises ConfigError that names the file and, if it can, the line."""
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    return decoded(raw, str(path), what, most_bytes)


def decoded(raw: bytes, source: str, what: str, most_bytes: int) -> str:
    """What was read as text, as `read_text` says; `source` names it."""
    if len(raw) > most_bytes:
        raise ConfigError(f"{source}: is longer than {most_bytes} bytes; is it {what}?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: is not UTF-8 text") from None
