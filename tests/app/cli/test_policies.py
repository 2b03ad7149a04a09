"""`pointsman policies` where no front end runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pointsman.app.cli import admin_client, main, policies
from pointsman.app.cli.admin_client import NoFrontEndError
from pointsman.core.policies.registry import PolicyRegistry


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(method: str, admin_url: str, *arguments: object) -> object:
        raise NoFrontEndError(admin_url, "connection refused")

    monkeypatch.setattr(policies, "call", call)


@pytest.mark.parametrize("arguments", [["policies"], ["policies", "list"]])
@pytest.mark.usefixtures("nobody")
def test_those_installed_are_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 0
    said = capsys.readouterr()
    assert said.err == f"no front end runs at {admin_client.DEFAULT_ADMIN_URL}; built in and installed are:\n"
    assert [line.strip() for line in said.out.splitlines()] == PolicyRegistry().names()
    assert "*" not in said.out


@pytest.mark.usefixtures("nobody")
def test_as_json(tmp_path: Path) -> None:
    assert main.run(["policies", "list", "--json", str(tmp_path / "p.json")]) == 0
    told = json.loads((tmp_path / "p.json").read_text())
    assert told == {"policy": None, "policies": PolicyRegistry().names()}


@pytest.mark.parametrize("arguments", [["list", "--admin-url", "http://a:1"], ["set", "random"]])
@pytest.mark.usefixtures("nobody")
def test_who_names_a_front_end_hears_that_it_is_not_there(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["policies", *arguments]) == 2
    assert "no front end answers at http://" in capsys.readouterr().err
