"""Texts of manifests: of files, or of stdin where `-` stands for one, as what kubectl prints is often piped."""

from __future__ import annotations

import sys
from pathlib import Path

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.loader import decoded, read_text

STDIN = Path("-")


def read_manifest(path: Path, what: str, most_bytes: int) -> tuple[str, str]:
    """The text of a file that should be `what`, or of stdin; and how messages name it. Raises ConfigError."""
    if path != STDIN:
        return read_text(path, what, most_bytes), str(path)
    if sys.stdin is None or sys.stdin.closed:
        raise ConfigError(f"stdin: is closed; expected {what} there")
    try:
        raw = sys.stdin.buffer.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError(f"stdin: can't be read: {error.strerror}") from None
    if not raw.strip():
        raise ConfigError(f"stdin: is empty; expected {what}: did the command before the pipe fail?")
    return decoded(raw, "stdin", what, most_bytes), "stdin"
