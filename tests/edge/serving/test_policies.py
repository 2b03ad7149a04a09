"""Policies that other packages bring, and switching."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import PolicyError
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.edge.serving.policies import ActivePolicy, load_registry

SOURCE = """
class First:
    name = "first_listed"
    def decide(self, request, view, timing, now_ms, rng): ...
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, entry: str) -> None:
    """A package as pip would leave it."""
    (folder / f"{module}.py").write_text(SOURCE)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pointsman.policies]\nfirst_listed = {entry}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_an_installed_package_brings_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "good_plugin", "good_plugin:First")
    assert load_registry().get("first_listed").name == "first_listed"


@pytest.mark.parametrize("entry", ["bad_plugin:Missing", "no_such_module:First"])
def test_one_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    install(tmp_path, monkeypatch, "bad_plugin", entry)
    with pytest.raises(PolicyError, match=f"'first_listed' \\({entry}\\) can't be loaded.*uninstall"):
        load_registry()


def test_switching_to_an_unknown_policy_changes_nothing() -> None:
    active = ActivePolicy(PolicyRegistry(), "auto")
    with pytest.raises(PolicyError):
        active.switch("best")
    assert (active.configured_name, active.policy.name) == ("auto", "prefix")
    active.switch("random")
    assert (active.configured_name, active.policy.name) == ("random", "random")
