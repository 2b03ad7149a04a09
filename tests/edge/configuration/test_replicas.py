"""Section `replicas`."""

from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.replicas.settings import ReplicaSettings
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree

ETCD = "etcd: {endpoints: ['http://a:2379'], fleet: f}\n"


def load(text: str) -> ConfigTree:
    return load_text(text, "c.yaml", ConfigTree)


def settings(text: str, **environ: str) -> ReplicaSettings:
    tree = load(text)
    return ReplicaSettings.of(tree.replicas, tree.etcd, environ)


def test_alone() -> None:
    assert settings("").alone


def test_between_hosts() -> None:
    found = settings(
        "replicas: {listen: 'tcp://10.0.0.1:8082', peers: ['tcp://b.example:8082', 'tcp://[fd00::2]:8082'],"
        " secret_env: S, heartbeat_interval: 1s, lost_after: 3s}",
        S=" known to all ",
    )
    assert (found.listen, found.peers) == ("tcp://10.0.0.1:8082", ("tcp://b.example:8082", "tcp://[fd00::2]:8082"))
    assert (found.secret, found.timing.heartbeat_s, found.timing.lost_after_s) == ("known to all", 1.0, 3.0)
    assert "known" not in repr(found)
    assert not found.alone


def test_through_etcd() -> None:
    found = settings(ETCD + "replicas: {listen: 'tcp://0.0.0.0:1', etcd: true, advertise: 'tcp://h:1', secret: s}")
    assert found.etcd is not None
    assert (found.etcd.prefix, found.etcd.advertise) == ("/pointsman/f/replicas/", "tcp://h:1")
    found = settings(ETCD + "replicas: {listen: 'tcp://10.0.0.1:0', etcd: true, secret: s}")
    assert found.etcd is not None
    assert found.etcd.advertise == "tcp://10.0.0.1:0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{peers: ['tcp://127.0.0.1:1']}", r"replicas\.peers: listen is missing"),
        ("{etcd: true}", r"replicas\.etcd: listen is missing"),
        ("{listen: 'tcp://127.0.0.1:1'}", r"replicas\.listen: who are the others"),
        ("{listen: 'tcp://10.0.0.1:1', peers: ['tcp://127.0.0.1:1']}", r"replicas\.listen: .*give all.* secret"),
        ("{listen: 'tcp://127.0.0.1:1', peers: ['tcp://h:1']}", r"replicas\.peers\[0\]: .*the same secret"),
        ("{listen: 'tcp://127.0.0.1:0', peers: ['tcp://127.0.0.1:1']}", r"replicas\.listen: .*which port"),
        ("{listen: 'tcp://127.0.0.1:1', peers: ['tcp://127.0.0.1:0']}", r"replicas\.peers\[0\]: .*which port"),
        ("{listen: 'tcp://0.0.0.0:1', etcd: true, secret: s}", r"replicas\.advertise: is missing: nobody"),
        ("{listen: 'tcp://127.0.0.1:1', etcd: true}", r"replicas\.etcd: etcd\.endpoints is missing"),
        ("{listen: 'http://127.0.0.1:1'}", r"replicas\.listen: expected an address with a port"),
        ("{listen: 'tcp://127.0.0.1'}", r"replicas\.listen: expected an address with a port"),
        ("{listen: 'tcp://127.0.0.1:1/x'}", r"replicas\.listen: expected an address with a port"),
        ("{listen: 'tcp://u:secret@h:1'}", r"replicas\.listen: expected an address with a port"),
        ("{secret: a, secret_env: B}", r"replicas\.secret: secret_env is given too"),
        ("{heartbeat_interval: 1s}", r"replicas\.lost_after: 2500ms is less than 3 × heartbeat_interval \(1s\)"),
    ],
)
def test_faults(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(f"replicas: {text}")


def test_a_secret_that_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"replicas\.secret_env: environment variable S is not set.*secret_env"):
        settings("replicas: {secret_env: S}")
