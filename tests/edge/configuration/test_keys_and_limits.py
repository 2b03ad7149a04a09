"""Keys, limits and certificates as the configuration takes them, and what it says of bad ones."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from pointsman.core.limits.limits import Limits
from pointsman.core.model.errors import ConfigError
from pointsman.edge.configuration.key_hash import KeyHash
from pointsman.edge.configuration.keys_file import KeysFile, load_keys
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.moment import Moment
from pointsman.edge.configuration.tree import ConfigTree

HASH = "0f" * 32


def tree(text: str) -> ConfigTree:
    return load_text(text, "c.yaml", ConfigTree)


def keys(text: str) -> KeysFile:
    return load_text(text, "k.yaml", KeysFile)


def test_keys_with_all_they_may_have() -> None:
    read = keys(
        f"keys:\n- {{id: a, tenant: acme, sha256: {HASH}, expires: 2027-01-31, limits: {{concurrency: 3}}}}\n"
        f"- {{id: b, tenant: acme, sha256: {HASH[::-1]}}}\n"
    )
    first, second = read.keys
    assert first.sha256 == bytes.fromhex(HASH)
    assert first.expires == Moment(datetime.datetime(2027, 1, 31, tzinfo=datetime.UTC).timestamp())
    assert first.limits is not None
    assert first.limits.limits() == Limits(concurrency=3)
    assert (second.expires, second.limits, second.tenant) == (None, None, "acme")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"keys:\n- {{id: a, sha256: {HASH}}}", "k.yaml:2: keys[0].tenant is missing"),
        (f"keys:\n- {{id: a b, tenant: t, sha256: {HASH}}}", "k.yaml:2: keys[0].id: expected text of letters"),
        (f"keys:\n- {{id: a, tenant: t, sha256: {HASH}, expires: soon}}", "keys[0].expires: expected a date or time"),
        (f"keys:\n- {{id: a, tenant: t, sha256: {HASH}}}\n- {{id: a, tenant: t, sha256: {HASH[::-1]}}}", "k.yaml:3:"),
        (f"keys:\n- {{id: a, tenant: t, sha256: {HASH}}}\n- {{id: b, tenant: t, sha256: {HASH}}}", "keys[1].sha256"),
        (f"keys:\n- {{id: a, tenant: t, sha256: {HASH}, key: x}}", "keys[0].key: unknown key"),
    ],
)
def test_bad_keys_are_named_with_their_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"k\.yaml:\d") as raised:
        keys(text)
    assert words in str(raised.value)


@pytest.mark.parametrize("given", ["sk-live-canary", "[sk-live-canary]", "{a: sk-live-canary}", "12345678901"])
def test_a_key_that_stands_where_its_hash_belongs_is_never_repeated(given: str) -> None:
    with pytest.raises(ConfigError, match="64 hexadecimal digits") as raised:
        keys(f"keys:\n- {{id: a, tenant: t, sha256: {given}}}")
    assert "canary" not in str(raised.value)
    assert "12345678901" not in str(raised.value)


def test_hashes_do_not_show() -> None:
    read = keys(f"keys:\n- {{id: a, tenant: t, sha256: {HASH}}}")
    assert KeyHash.of(b"x").hex() not in repr(KeyHash.of(b"x"))
    assert HASH not in repr(read)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"k\.yaml: can't be read: No such file"):
        load_keys(tmp_path / "k.yaml")


def test_limits_by_tenant_and_model() -> None:
    tenants = tree(
        "tenants:\n  default: {requests_per_minute: 60}\n"
        "  named: {acme: {tokens_per_minute: 1000, burst: 10s, models: {big: {concurrency: 2}}}}"
    ).tenants
    assert tenants.default.limits() == Limits(60)
    acme = tenants.named["acme"]
    assert acme.limits() == Limits(None, 1000, None, 10.0)
    assert acme.models["big"].limits() == Limits(concurrency=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: {default: {requests_per_minute: 0}}", "default.requests_per_minute: expected an integer from 1"),
        ("tenants: {default: {burst: 0s}}", "default.burst: expected a duration above 0"),
        ("tenants: {acme: {concurrency: 1}}", "tenants.acme: unknown key"),
        ("auth: {admin_key: a, admin_key_env: B}", "auth.admin_key: admin_key_env is given too"),
        ("control-plane: {admin_host: 0.0.0.0}", "control-plane.admin_host: 0.0.0.0 lets other machines"),
        ("control-plane: {engine_tls: {certificate: a}}", "engine_tls.certificate: key is missing"),
        ("control-plane: {tls: {certificate: a, key: b, client_certificates: maybe}}", "one of required, optional"),
        ("execution-group: {nodes: [{url: 'https://a', tls: {key: b}}]}", "nodes[0].tls.key: certificate is missing"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tree(text)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "control-plane: {admin_host: 0.0.0.0}\nauth: {admin_key_env: KEY}",
        "control-plane: {admin_host: 0.0.0.0}\nauth: {admin_key: zz-3141}",
        "control-plane: {admin_host: 0.0.0.0}\nauth: {admin_open: true}",
        "control-plane: {admin_host: 127.0.0.2}",
        "control-plane: {admin_host: localhost}",
        "control-plane: {admin_host: '::1'}",
    ],
)
def test_where_the_admin_port_may_listen(text: str) -> None:
    assert "zz-3141" not in repr(tree(text))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("2027-01-31", "2027-01-31T00:00:00Z"),
        ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00Z"),
        ("2027-01-31T12:00:00+02:00", "2027-01-31T10:00:00Z"),
        (datetime.date(2027, 1, 31), "2027-01-31T00:00:00Z"),
        (datetime.datetime(2027, 1, 31, 5), "2027-01-31T05:00:00Z"),
    ],
)
def test_moments(value: object, shown: str) -> None:
    assert str(Moment.parse(value)) == shown


@pytest.mark.parametrize("value", ["", "tomorrow", 5, None, "2027-13-01"])
def test_what_is_no_moment(value: object) -> None:
    with pytest.raises(ValueError, match="a date or time"):
        Moment.parse(value)


@pytest.mark.parametrize(
    "text",
    [
        "replicas: {peers: ['tcp://u:canary@h']}",
        "etcd: {endpoints: ['http://u:canary@a:2379']}",
        "execution-group: {nodes: [{url: 'http://u:canary@a:1'}]}",
        "execution-group: {nodes: [{url: 'http://a:1', gpu_metrics_url: 'http://u:canary@a:1/m'}]}",
        "execution-group: {nodes: [{url: 'http://a:1', gpu_metrics_url: 'u:canary@a'}]}",
        "auth: {admin_key: [canary]}",
        "auth: {admin_key: {canary: canary}}",
    ],
)
def test_secrets_in_wrong_places_are_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tree(text)
    assert "canary" not in str(raised.value)
