"""Whose a request is where nobody is asked for a key."""

from __future__ import annotations

import pytest

from pointsman.edge.serving.route_keys import MAX_KEY_CHARACTERS, tenant_of
from pointsman.edge.wire.http1_request import IncomingRequest


def tenant(*headers: tuple[bytes, bytes]) -> str | None:
    return tenant_of(IncomingRequest("POST", b"/", headers, b"", "peer"))


def test_the_header_wins_wherever_it_stands() -> None:
    named, key = (b"x-tenant-id", b"acme"), (b"authorization", b"Bearer canary")
    assert tenant(named, key) == tenant(key, named) == "acme"
    assert tenant((b"x-tenant-id", b"a" * 9999)) == "a" * MAX_KEY_CHARACTERS
    assert tenant() is None
    assert tenant((b"x-tenant-id", b"")) is None


@pytest.mark.parametrize("header", [b"authorization", b"x-api-key", b"api-key"])
def test_a_key_stands_for_its_owner_and_does_not_show(header: bytes) -> None:
    one, other = tenant((header, b"Bearer canary-1")), tenant((header, b"Bearer canary-2"))
    assert one is not None
    assert one.startswith("key-")
    assert one != other
    assert "canary" not in f"{one}{other}"
