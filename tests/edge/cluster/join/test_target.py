"""What `--join` takes."""

from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.join.target import AdminTarget, EtcdTarget, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://10.0.0.1:8081", AdminTarget("http://10.0.0.1:8081")),
        ("https://front.example/", AdminTarget("https://front.example")),
        ("etcd", EtcdTarget()),
        ("etcd://a", EtcdTarget(("http://a:2379",))),
        ("etcd://a:1,[::1]:2,c/prod", EtcdTarget(("http://a:1", "http://[::1]:2", "http://c:2379"), "prod")),
        ("etcds://a", EtcdTarget(("https://a:2379",))),
    ],
)
def test_targets(text: str, target: object) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text", ["", "a:8081", "etcd://", "etcd://a,,b", "etcd://a/b/c", "etcd://a/b c", "http://a/v1", "zk://a", "etcds"]
)
def test_no_targets(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--join .*: expected http://HOST:PORT"):
        parse_target(text)
