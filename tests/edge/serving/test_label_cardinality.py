"""Whatever clients and engines think of, there are only so many series."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from pointsman.edge.configuration.keys_file import KeysFile
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tenants import TenantLimits, Tenants
from pointsman.edge.serving.tenants.principal import Principal
from pointsman.edge.serving.tenants.tenancy import TenancySettings
from pointsman.edge.telemetry.bounded import MOST_VALUES, OTHERS, BoundedCounter
from support.scripted_fleet import Fleet

from .tenants.conftest import keys_text

MANY = 10_000
MOST_SERIES_A_FAMILY = 200


async def families(fleet: Fleet) -> Counter[str]:
    page = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    return Counter(re.split(r"[{ ]", line)[0] for line in page.splitlines() if line and not line.startswith("#"))


def test_what_comes_after_the_first_ones_counts_as_others() -> None:
    counter: BoundedCounter[str] = BoundedCounter(OTHERS)
    for number in range(MANY):
        counter.add(str(number), 2)
    counter.add("0")
    assert len(counter) == MOST_VALUES + 1
    assert (counter["0"], counter[OTHERS]) == (3, 2 * (MANY - MOST_VALUES))


async def test_ten_thousand_of_each(fleet: Fleet) -> None:
    """What a client can choose, through the front end for a part of them, and then where it is counted."""
    statuses = iter(range(200, 1000))

    async def any_status(incoming, responder) -> None:
        responder.send(next(statuses), [], b"{}")

    await fleet.engine("a", answer=any_status)
    frontend = await fleet.open(
        tenancy=TenancySettings(None, Tenants(default=TenantLimits(requests_per_minute=1, concurrency=5)))
    )
    for number in range(150):
        name = str(number).encode()
        headers = [(b"x-tenant-id", b"t" + name), (b"x-request-id", name), (b"x-slo-class", name)]
        await fleet.chat(headers=headers[:2])
        await fleet.chat(headers=headers[:2])
        await fleet.chat(headers=headers, model=f"m{number}")
        await fleet.ask(f"/v1/x{number}", b"{}")
        await fleet.ask("/v1/models", method=("GET", "PUT", "PATCH", "DELETE")[number % 4])
    gate, exchange_counts = frontend.tenancy.gate, frontend.tenancy.counts
    for number in range(MANY):
        frontend.traffic.responses["/v1/chat/completions", 200 + number % 800] += 1
        exchange_counts.requests.add(f"t{number}")
        exchange_counts.keys.add(f"k{number}")
        exchange_counts.tokens.add(f"t{number}", 5)
        exchange_counts.limited.add((f"t{number}", "requests"))
        principal = Principal.of_tenant(f"t{number}")
        accounts = gate._accounts(principal, None, frontend.tenancy.clock())
        frontend.tenancy.book.begin(accounts, 1, frontend.tenancy.clock())
    found = await families(fleet)
    assert max(found.values()) <= MOST_SERIES_A_FAMILY, found.most_common(5)
    assert sum(found.values()) < 2000
    assert found["pointsman_tenant_requests_total"] == MOST_VALUES + 1
    assert found["pointsman_tenant_running_requests"] == MOST_VALUES + 1
    report = frontend.status().tenants
    assert report is not None
    assert len(report.accounts) == 50
    assert report.more + 50 == len(frontend.tenancy.book) <= MANY + 1


@pytest.mark.parametrize("keys", [2000])
async def test_many_keys_are_one_series_each_only_up_to_the_bound(fleet: Fleet, tmp_path: Path, keys: int) -> None:
    text = keys_text(**{f"k{number}": (f"t{number}", f"key-{number}") for number in range(keys)})
    assert len(load_text(text, "k.yaml", KeysFile).keys) == keys
    path = tmp_path / "k.yaml"
    path.write_text(text)
    await fleet.engine("a")
    await fleet.open(tenancy=TenancySettings(path))
    for number in range(60):
        answer = await fleet.chat(headers=[(b"authorization", b"Bearer key-%d" % number)])
        assert answer.status == 200
    found = await families(fleet)
    assert found["pointsman_key_requests_total"] == MOST_VALUES + 1
