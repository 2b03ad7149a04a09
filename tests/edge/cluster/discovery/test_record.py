"""Records of engines: what they take, and those that have no address yet."""

from __future__ import annotations

import json

import pytest

from pointsman.core.model.errors import ConfigError
from pointsman.edge.cluster.discovery.record import NoAddressError, WorkerRecord, record_of_json


def read(**keys: object) -> object:
    return record_of_json(json.dumps(keys).encode(), "etcd /w/a", WorkerRecord)


def test_keys_of_nodes_and_more() -> None:
    record = record_of_json(
        b'{"url": "http://a:8000", "name": "x", "weight": 2, "draining": "it stops"}', "k", WorkerRecord
    )
    assert (record.engine_name, record.url, record.weight, record.draining) == ("x", "http://a:8000", 2.0, "it stops")
    assert record_of_json(b'{"url": "http://a:8000", "draining": null}', "k", WorkerRecord).draining is None


@pytest.mark.parametrize(
    "url",
    [None, "", " ", "None", "null", "http://", "http://None:8000", "https://null", "http://undefined:1/", "None:8000"],
)
def test_no_address(url: object) -> None:
    with pytest.raises(NoAddressError, match=r"^etcd /w/a: it has no address yet$"):
        read(url=url, unknown="key")


def test_no_url_at_all() -> None:
    with pytest.raises(NoAddressError):
        read(name="x")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "etcd /w/a: this is no JSON"),
        (b"\xff\xfe", "etcd /w/a: this is no JSON"),
        (b'{"url": "http://a:8', "etcd /w/a: this is no JSON"),
        (b"[]", "etcd /w/a: the record: expected keys and values"),
        (b'"http://a:8000"', "etcd /w/a: the record: expected keys and values"),
        (b'{"url": 5}', "etcd /w/a: url: expected the base URL"),
        (b'{"ur": "http://a:8000"}', "etcd /w/a: ur: unknown key; did you mean url?"),
        (b'{"url": "http://nonesuch.example:8000/v1"}', "without a path"),
        (b'{"url": "http://a", "weigth": 1}', "etcd /w/a: weigth: unknown key; did you mean weight?"),
        (b'{"url": "http://a", "weight": "heavy"}', "etcd /w/a: weight: expected a number"),
        (b'{"url": "http://a", "draining": true}', "etcd /w/a: draining: expected text"),
        (b'{"url": "http://a", "api_key": "k", "api_key_env": "K"}', "etcd /w/a: api_key: api_key_env is given too"),
    ],
)
def test_malformed(value: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        record_of_json(value, "etcd /w/a", WorkerRecord)
    assert message in str(caught.value)
    assert not isinstance(caught.value, NoAddressError)


def test_nested_beyond_reason() -> None:
    for value in (
        b'{"url": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"url":"http://a","models":' + b"[" * 700 + b"]" * 700 + b"}",
    ):
        with pytest.raises(ConfigError):
            record_of_json(value, "etcd /w/a", WorkerRecord)
