"""The benchmark of keys and limits measures what it says."""

from __future__ import annotations

import tenants

OPTIONS = tenants.Options(rounds=1, requests=200, keys=10, tenants=3)


async def test_each_case_is_let_in_and_measured() -> None:
    found = (await tenants.measure(OPTIONS))["us"]
    assert next(iter(found)) == "neither keys nor limits"
    assert len(found) == 5
    assert all(us > found["neither keys nor limits"] for name, us in found.items() if name != "neither keys nor limits")


def test_the_bar() -> None:
    assert tenants.summary({"us": {"a": 1.0, "b": 15.5}}) == {"most_us": 15.5, "met": False}
