"""The file of API keys that `auth.keys_file` names: hashes and whose they are, never keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.edge.configuration.conflict import KeyConflictError
from pointsman.edge.configuration.key_hash import KeyHash
from pointsman.edge.configuration.loader import load_text, read_text
from pointsman.edge.configuration.moment import Moment
from pointsman.edge.configuration.tenants import LimitSet

NAME_FORM = "^[A-Za-z0-9._:\\[\\]-]+$"
_MOST_BYTES = 64 * 2**20


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key."""

    id: Annotated[
        str, Meta(min_length=1, max_length=64, pattern=NAME_FORM, description="Its name in logs, metrics and status.")
    ]
    tenant: Annotated[
        str, Meta(min_length=1, max_length=128, pattern=NAME_FORM, description="Whose it is; several may share one.")
    ]
    sha256: Annotated[KeyHash, Meta(description="SHA-256 of the key in hexadecimal digits.")]
    expires: Annotated[Moment | None, Meta(description="From when on it is refused; default: never.")] = None
    limits: Annotated[LimitSet | None, Meta(description="Limits of this key, beside those of its tenant.")] = None


class KeysFile(msgspec.Struct, frozen=True, kw_only=True):
    """All keys. An empty file is none: it is what is left of one that could not be written."""

    keys: Annotated[tuple[ApiKey, ...], Meta(description="One entry a key.")]

    def __post_init__(self) -> None:
        ids: dict[str, int] = {}
        hashes: dict[bytes, int] = {}
        for index, key in enumerate(self.keys):
            if (first := ids.setdefault(key.id, index)) != index:
                raise KeyConflictError(f"keys[{index}].id", f"keys[{first}] is called {key.id!r} too")
            if (first := hashes.setdefault(key.sha256, index)) != index:
                raise KeyConflictError(f"keys[{index}].sha256", f"is the key of keys[{first}] too; name each once")


def load_keys(path: Path) -> KeysFile:
    """Read the file. Raises ConfigError that names file, line and key, and never repeats what stands for a hash."""
    return load_text(read_text(path, "a file of keys", _MOST_BYTES), str(path), KeysFile, "keys:")
