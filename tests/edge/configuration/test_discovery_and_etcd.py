"""Sections `discovery` and `etcd`."""

from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.etcd.access import EtcdAccess
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree


def load(text: str) -> ConfigTree:
    return load_text(text, "c.yaml", ConfigTree)


def test_access_from_the_configuration() -> None:
    tree = load("etcd: {endpoints: ['http://a:2379', 'https://b:2379/'], user: u, password_env: PW, timeout: 1s}")
    access = EtcdAccess.of(tree.etcd, {"PW": " word "})
    assert access.endpoints == ("http://a:2379", "https://b:2379")
    assert (access.user, access.password, access.timeout_s) == ("u", "word", 1.0)
    assert "word" not in repr(access)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("discovery: {etcd: true}", r"c\.yaml:1: discovery\.etcd: etcd\.endpoints is missing"),
        ("discovery: {resync_interval: 31s}", r"discovery\.resync_interval: 31s is longer than 30s"),
        ("discovery: {etcd_prefix: /a}", r"discovery\.etcd_prefix: /a must end with a slash"),
        ("etcd: {endpoints: [a:2379]}", r"etcd\.endpoints\[0\]: expected the base URL of etcd's client port"),
        ("etcd: {endpoints: ['http://u:secret@a:2379']}", r"etcd\.endpoints\[0\]: expected"),
        ("etcd: {user: u}", r"etcd\.user: has no password"),
        ("etcd: {password: p}", r"etcd\.user: is missing"),
        ("etcd: {user: u, password: p, password_env: P}", r"etcd\.password: password_env is given too"),
        ("etcd: {certificate: c.pem}", r"etcd\.key: is missing"),
        ("etcd: {fleet: a/b}", r"etcd\.fleet: expected text"),
    ],
)
def test_faults(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(text)
    assert "secret" not in str(caught.value)


def test_what_only_shows_when_it_is_used() -> None:
    missing = load("etcd: {endpoints: ['http://a:2379'], user: u, password_env: PW}")
    with pytest.raises(ConfigError, match=r"etcd\.password_env: environment variable PW is not set"):
        EtcdAccess.of(missing.etcd, {})
    with pytest.raises(ConfigError, match=r"etcd\.ca: can't use"):
        EtcdAccess.of(load("etcd: {ca: /nowhere.pem}").etcd, {})
