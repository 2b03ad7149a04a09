"""Flags and file become one tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.app.cli.configured import FrontendFlags, load_tree
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.tree import ConfigTree


def test_nothing_given() -> None:
    assert load_tree(FrontendFlags()) == ConfigTree()


def test_flags_over_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("control-plane: {listen_port: 1, admin_port: 2}\nrouting: {policy: random}\n")
    flags = FrontendFlags(file, "0.0.0.0", 3, None, "prefix", ("http://a:1",))
    tree = load_tree(flags)
    plane = tree.control_plane
    assert (plane.listen_host, plane.listen_port, plane.admin_port) == ("0.0.0.0", 3, 2)
    assert tree.routing.policy == "prefix"
    assert [node.url for node in tree.execution_group.nodes] == ["http://a:1"]


def test_a_port_of_zero_is_given_too() -> None:
    assert load_tree(FrontendFlags(port=0, admin_port=0)).control_plane.listen_port == 0


def test_faults(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--port: control-plane\.listen_port"):
        load_tree(FrontendFlags(port=-1))
    with pytest.raises(ConfigError, match=r"absent\.yaml: can't be read"):
        load_tree(FrontendFlags(tmp_path / "absent.yaml"))
