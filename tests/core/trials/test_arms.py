"""Which requests a new policy decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.errors import PolicyError
from pointsman.core.model.request import Request
from pointsman.core.trials.arms import BUCKETS, Arm, By, Split

PINNED = [18, 45, 39, 6, 32, 51]
TEXT = st.text(max_size=12)
SHARES = st.floats(0, 1)


def request(id: str = "r", route_key: str | None = None, tenant: str | None = None, **more: object) -> Request:
    return Request(id, "m", 0.0, 1, route_key=route_key, tenant=tenant, **more)  # type: ignore[arg-type]


@given(st.sampled_from(By), SHARES, SHARES, TEXT, TEXT, TEXT)
def test_a_wider_share_keeps_all_of_a_narrower_one(by: By, a: float, b: float, id: str, key: str, tenant: str) -> None:
    narrow, wide = Split("new", min(a, b), by), Split("new", max(a, b), by)
    one = request(id, key, tenant)
    if narrow.place(one).arm is Arm.TRIAL:
        assert wide.place(one).arm is Arm.TRIAL
    assert narrow.place(one).bucket == wide.place(one).bucket
    assert Split("new", 0.0, by).place(one).arm is Arm.BASE
    assert Split("new", 1.0, by).place(one).arm is Arm.TRIAL


@given(TEXT, TEXT, TEXT, TEXT, SHARES)
def test_a_session_stays_whole_and_requests_do_not(a: str, b: str, key: str, tenant: str, share: float) -> None:
    split = Split("new", share, By.SESSION)
    assert split.place(request(a, key, tenant)) == split.place(request(b, key, tenant))
    alone = Split("new", share, By.REQUEST)
    assert alone.place(request(a, key, tenant)) == alone.place(request(a, b, None))
    assert split.place(request(a)) == alone.place(request(a))  # without a key it is a session of its own


def test_the_same_key_of_another_tenant_is_another_session() -> None:
    split = Split("new", 0.5, By.SESSION)
    places = {split.place(request(route_key="k", tenant=f"t{i}")) for i in range(100)}
    assert len(places) > 50


def test_shares_are_kept_and_buckets_are_even_in_both_arms() -> None:
    split = Split("new", 0.05, By.REQUEST)
    places = [split.place(request(f"pm-0123456789ab-{i}")) for i in range(40_000)]
    trial = [place.bucket for place in places if place.arm is Arm.TRIAL]
    assert len(trial) == pytest.approx(2000, abs=5 * 44)  # 5 standard deviations
    counts = [trial.count(bucket) for bucket in range(BUCKETS)]
    assert sum((count - len(trial) / BUCKETS) ** 2 for count in counts) / (len(trial) / BUCKETS) < 120  # χ², 63 degrees


def test_other_policies_are_tried_on_others_first_and_places_never_change() -> None:
    ids = [request(f"r{i}") for i in range(400)]
    one, two = ([Split(name, 0.1, By.REQUEST).place(r).arm is Arm.TRIAL for r in ids] for name in ("a", "b"))
    assert one != two
    # Fixed for ever: front ends of another version must agree.
    assert [Split("cost", 1.0, By.REQUEST).place(request(f"r{i}")).bucket for i in range(6)] == PINNED
    assert Split("cost", 0.5, By.SESSION).place(request("x", "\ud800")) is not None  # no key can break it


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_other_shares_are_refused(share: float) -> None:
    with pytest.raises(PolicyError, match="a share is from 0 to 1"):
        Split("new", share, By.REQUEST)
