"""The admin port's own key."""

from __future__ import annotations

import json

import pytest

from support.scripted_fleet import Fleet

KEY = "admin-canary"
RIGHT = [(b"authorization", b"Bearer " + KEY.encode())]
PATHS = ("/metrics", "/v1/status", "/v1/policies", "/v1/decisions", "/nothing")


@pytest.mark.parametrize("path", PATHS)
async def test_all_but_health_wants_the_key(fleet: Fleet, path: str, caplog) -> None:
    await fleet.engine("a")
    frontend = await fleet.open(admin_key=KEY)
    assert (await fleet.ask("/health", method="GET", admin=True)).status == 200
    for headers in (
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", KEY.encode())],
        [(b"x-api-key", KEY.encode())],
    ):
        answer = await fleet.ask(path, method="GET", admin=True, headers=headers)
        assert answer.status == 401
        assert answer.header(b"www-authenticate") is not None
        assert json.loads(answer.body)["error"]["code"] == "invalid_api_key"
    assert (await fleet.ask(path, method="GET", admin=True, headers=RIGHT)).status == (
        404 if path == "/nothing" else 200
    )
    metrics = await fleet.ask("/metrics", method="GET", admin=True, headers=RIGHT)
    assert b"pointsman_admin_refused_total 4.0" in metrics.body
    assert caplog.text.count("asked the admin port without its key") == 1
    assert KEY not in caplog.text
    assert KEY not in repr(frontend._settings)


async def test_another_key_from_now_on(fleet: Fleet) -> None:
    await fleet.engine("a")
    frontend = await fleet.open(admin_key=KEY)
    frontend.admin_auth.change("other")
    assert (await fleet.ask("/metrics", method="GET", admin=True, headers=RIGHT)).status == 401
    frontend.admin_auth.change(None)
    assert (await fleet.ask("/metrics", method="GET", admin=True)).status == 200


async def test_the_policy_can_not_be_switched_without_it(fleet: Fleet) -> None:
    await fleet.engine("a")
    frontend = await fleet.open(admin_key=KEY)
    change = {"policy": "random"}
    assert (await fleet.ask("/v1/policy", change, "PUT", admin=True)).status == 401
    assert frontend.policy.configured_name == "round_robin"
    assert (await fleet.ask("/v1/policy", change, "PUT", admin=True, headers=RIGHT)).status == 200
