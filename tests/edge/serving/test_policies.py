"""Policies that other packages bring, and switching."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pointsman.core.model.errors import PolicyError
from pointsman.core.model.plan import Aggregate
from pointsman.core.model.request import Request
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.policy import decision
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.edge.serving.policies import ActivePolicy, load_registry

SOURCE = """
class First:
    name = "first_listed"
    def decide(self, request, view, timing, now_ms, rng): ...

class Other(First):
    name = "other"
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
    assert (active.configured_name, active.policy.name) == ("auto", "auto")
    active.switch("random")
    assert (active.configured_name, active.policy.name) == ("random", "random")


def test_one_that_has_another_name_than_its_entry_point_is_refused(tmp_path, monkeypatch) -> None:
    install(tmp_path, monkeypatch, "liar_plugin", "liar_plugin:Other")
    with pytest.raises(PolicyError, match=r"'first_listed'.*'other'; use one name"):
        load_registry()


def test_session_needs_a_route_key_at_run_time_too() -> None:
    active = ActivePolicy(PolicyRegistry(), "auto")
    with pytest.raises(PolicyError, match=r"session needs routing\.route_key"):
        active.switch("session")
    with pytest.raises(PolicyError, match=r"session needs routing\.route_key"):
        ActivePolicy(PolicyRegistry(), "session")
    ActivePolicy(PolicyRegistry(), "auto", has_route_key=True).switch("session")


class Broken:
    name = "broken"

    def __init__(self, choice: str | None) -> None:
        self.choice = choice

    def decide(self, request, view, timing, now_ms, rng):
        if self.choice is None:
            raise ZeroDivisionError("oops")
        made = decision(self.name, request, view, now_ms, 0, view.load, "requests")
        return replace(made, plan=Aggregate(WorkerId(self.choice)))


@pytest.mark.parametrize(
    ("choice", "reason"), [(None, "oops"), ("b/0", "which is excluded: draining"), ("c/0", "no candidate")]
)
def test_a_policy_that_breaks_its_contract_is_logged_with_its_traceback_once(choice, reason, caplog) -> None:
    active = ActivePolicy(PolicyRegistry([Broken(choice)]), "broken")
    view = FleetView.of(["a/0", "b/0"], exclusion=[0, Exclusion.DRAINING])
    for _ in range(3):
        with pytest.raises(PolicyError, match="broken failed to decide"):
            active.decide(Request("r1", "m", 0.0, 1), view, {}, 0.0, lambda: random.Random(0))
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False]
    assert all(reason in record.getMessage() and "r1" in record.getMessage() for record in caplog.records)


def test_auto_means_cost() -> None:
    active = ActivePolicy(PolicyRegistry(), "auto")
    assert active.in_force() == "cost"
    active.switch("random")
    assert active.in_force() == "random"
