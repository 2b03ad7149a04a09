"""`pointsman keys`: what it makes is what a front end reads, and a key is shown exactly once."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from pointsman.app.cli import main
from pointsman.edge.configuration.keys_file import load_keys
from pointsman.edge.serving.tenants.key_ring import KeyRing


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """The line and the key."""
    assert main.run(["keys", "make", *arguments]) == 0
    said = capsys.readouterr()
    found = re.fullmatch(r"key, shown only now: (pmk-\S{43})\n", said.err)
    assert found is not None
    return said.out, found[1]


def test_a_made_key_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "k.yaml"
    line, key = made(capsys, "--tenant", "acme", "--id", "laptop", "--expires", "90d")
    another, other = made(capsys)
    assert key != other
    assert key not in line
    file.write_text(f"keys:\n{line}{another}")
    ring = KeyRing(load_keys(file).keys)
    found = ring.find(key.encode())
    assert found is not None
    assert (found.principal.tenant, found.principal.key_id) == ("acme", "laptop")
    assert found.expires_s is not None
    assert ring.find(other.encode()) is not None
    assert ring.find(b"pmk-other") is None


def test_a_key_that_exists_is_taken_from_stdin_and_never_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-0123456789-0123456789"
    monkeypatch.setattr("sys.stdin", io.StringIO(key + "\n"))
    assert main.run(["keys", "make", "--stdin", "--tenant", "acme"]) == 0
    said = capsys.readouterr()
    assert key not in said.out + said.err
    assert "tenant: 'acme'" in said.out


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["--tenant", "a b"], "", "tenant: expected text of letters"),
        (["--id", ""], "", "id"),
        (["--expires", "2020-01-01"], "", "is over already"),
        (["--expires", "soon"], "", "expected a date or time"),
        (["--stdin"], "short\n", "the key has 5 characters"),
        (["--stdin"], "\n", "expected a key on the first line"),
        (["--stdin"], "kéy-kéy-kéy-kéy-kéy-kéy\n", "printable ASCII"),
    ],
)
def test_what_is_refused(arguments, stdin, words, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    if arguments == ["--id", ""]:
        assert main.run(["keys", "make", *arguments]) == 0  # a random one
        return
    assert main.run(["keys", "make", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_check_tells_whose_keys_there_are(capsys, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "k.yaml"
    good, key = made(capsys, "--tenant", "acme", "--id", "good")
    old, old_key = made(capsys, "--tenant", "blue", "--id", "old", "--expires", "90d")
    file.write_text("keys:\n" + good + re.sub(r"expires: \S+", "expires: 2020-01-01}", old))
    assert main.run(["keys", "check", str(file)]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == ["good: tenant acme", "old: tenant blue, EXPIRED 2020-01-01T00:00:00Z"]
    assert main.run(["keys", "check", str(file), "--json", str(tmp_path / "out.json")]) == 0
    assert [each["expired"] for each in json.loads((tmp_path / "out.json").read_text())] == [False, True]
    for given, status, words in (
        (key, 0, "good: tenant acme"),
        (old_key, 2, "EXPIRED"),
        ("other", 2, "not in the file"),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(given + "\n"))
        assert main.run(["keys", "check", str(file), "--stdin"]) == status
        said = capsys.readouterr()
        assert words in said.out + said.err
        assert given == "other" or given not in said.out + said.err


def test_check_of_a_broken_file_names_the_line(capsys, tmp_path: Path) -> None:
    file = tmp_path / "k.yaml"
    file.write_text("keys:\n- {id: a, tenant: t, sha256: canary}\n")
    assert main.run(["keys", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"{file}:2: keys[0].sha256: expected 64 hexadecimal digits" in said
    assert "canary" not in said


def test_a_file_that_does_not_begin_with_keys_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As of whoever appends what `make` prints to a file that was not there."""
    file = tmp_path / "keys.yaml"
    file.write_text(made(capsys)[0])
    assert main.run(["keys", "check", str(file)]) == 2
    assert "keys.yaml:1: expected sections, such as 'keys:', at the top" in capsys.readouterr().err
