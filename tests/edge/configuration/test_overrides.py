"""Flags over the file: same checks, and the flag is named."""

from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.overrides import Override, apply_overrides, engine_override
from pointsman.edge.configuration.tree import ConfigTree


def test_flags_win_and_the_rest_stays() -> None:
    tree = load_text(
        "control-plane: {listen_port: 1, admin_port: 2}\nexecution-group: {nodes: [{url: 'http://old:1'}]}",
        "c.yaml",
        ConfigTree,
    )
    changed = apply_overrides(
        tree,
        [Override("--port", "control-plane", "listen_port", 9), engine_override(["http://a:1", "http://b:1/"])],
    )
    assert (changed.control_plane.listen_port, changed.control_plane.admin_port) == (9, 2)
    assert [node.url for node in changed.execution_group.nodes] == ["http://a:1", "http://b:1"]
    assert tree.control_plane.listen_port == 1


def test_no_flags_change_nothing() -> None:
    assert apply_overrides(ConfigTree(), []) == ConfigTree()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            Override("--port", "control-plane", "listen_port", 70000),
            "--port: control-plane.listen_port: expected an integer",
        ),
        (
            Override("--port", "control-plane", "listen_port", 8081),
            "--port: control-plane.admin_port: 8081 is listen_port too",
        ),
        (
            Override("--policy", "routing", "policy", "session"),
            "--policy: routing.policy: session needs routing.route_key",
        ),
        (engine_override([""]), "--engine: execution-group.nodes[0].url: expected the base URL"),
        (
            engine_override(["http://a", "http://a/"]),
            "--engine: execution-group.nodes[1].url: is the URL of nodes[0] too",
        ),
    ],
)
def test_faults_name_the_flag(override: Override, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(ConfigTree(), [override])
    assert str(caught.value).startswith(message)
