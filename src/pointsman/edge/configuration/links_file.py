"""The file of measured links that `pointsman doctor links` writes and `links.file` names."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.loader import load_text, read_text

VERSION = 1
_VERSION = re.compile(r"""^[ {]*["']?version["']?: *([0-9]{1,9})\b""", re.MULTILINE)
MOST_NAME = 256
"""Characters of a machine's name."""
_MOST_BYTES = 64 * 2**20
_HEAD = "# Links between machines, measured by `pointsman doctor links`; for `links: {file: …}` of the front end.\n"


class SavedSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transfers of one size."""

    size_bytes: Annotated[int, Meta(ge=0, le=1 << 60, description="Of each.")]
    took_ms: Annotated[float, Meta(gt=0, description="From the first word to the last byte; the median.")]


class SavedLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One direction between two machines."""

    source: Annotated[str, Meta(min_length=1, max_length=MOST_NAME, description="Name of the machine that sends.")]
    target: Annotated[str, Meta(min_length=1, max_length=MOST_NAME, description="Name of the one that receives.")]
    transport: Annotated[str, Meta(description="Way that the bytes took: tcp, shm, nixl.")] = "tcp"
    round_trip_ms: Annotated[float, Meta(ge=0, description="Of the smallest message; 0: nobody looked.")] = 0.0
    samples: Annotated[tuple[SavedSample, ...], Meta(min_length=1, description="By size, one entry a size.")]


class LinksFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All directions."""

    version: Annotated[int, Meta(description="Of this form.")]
    measured_at: Annotated[str | None, Meta(description="When, in UTC.")] = None
    links: Annotated[tuple[SavedLink, ...], Meta(description="One entry a direction.")]

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise KeyConflictError("version", _of_another_version(self.version))
        seen: dict[tuple[str, str], int] = {}
        for index, link in enumerate(self.links):
            if (first := seen.setdefault((link.source, link.target), index)) != index:
                raise KeyConflictError(f"links[{index}]", f"links[{first}] is {link.source} → {link.target} too")


def load_links(path: Path) -> LinksFile:
    """Read the file. Raises ConfigError that names file, line and key."""
    text = read_text(path, "a file of links", _MOST_BYTES)
    try:
        return load_text(text, str(path), LinksFile, "version: 1")
    except ConfigError:
        said = _VERSION.search(text)
        if said is None or int(said[1]) == VERSION:
            raise
        # Which keys another version has, nobody knows here: they are not what is wrong.
        raise ConfigError(
            f"{path}:{text.count(chr(10), 0, said.start(1)) + 1}: version: {_of_another_version(int(said[1]))}"
        ) from None


def _of_another_version(version: int) -> str:
    return (
        f"this is a file of version {version}, and {VERSION} is known here: measure again with this pointsman's "
        "`doctor links`, or use the one that wrote it"
    )


def save_links(path: Path, links: LinksFile) -> None:
    """Write it whole or not at all: JSON if its name ends so, else YAML. Raises ConfigError."""
    plain = msgspec.to_builtins(links)
    if path.suffix.lower() == ".json":
        text = msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"
    else:
        text = _HEAD + yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    try:
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(made).chmod(0o644)
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path}: can't be written: {error.strerror or error}") from None
