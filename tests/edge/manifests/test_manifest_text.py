from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.manifests.manifest_text import STDIN, read_manifest


def _piped(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))


def test_a_dash_is_stdin_and_everything_else_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _piped(monkeypatch, b"\xef\xbb\xbfname: \xc3\xa4\n")
    assert read_manifest(STDIN, "a deployment", 100) == ("name: ä\n", "stdin")
    file = tmp_path / "-"
    file.write_text("a file of that name")
    assert read_manifest(file, "a deployment", 100) == ("a file of that name", str(file))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "stdin: is empty; expected a cluster: did the command before the pipe fail"),
        (b" \n", "stdin: is empty"),
        (b"x" * 101, "stdin: is longer than 100 bytes; is it a cluster"),
        (b"a\n\xff", "stdin:2: is not UTF-8 text"),
    ],
)
def test_what_can_not_be_read_says_so(monkeypatch: pytest.MonkeyPatch, raw: bytes, message: str) -> None:
    _piped(monkeypatch, raw)
    with pytest.raises(ConfigError, match=message):
        read_manifest(STDIN, "a cluster", 100)


def test_stdin_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match="stdin: is closed; expected a cluster there"):
        read_manifest(STDIN, "a cluster", 100)
