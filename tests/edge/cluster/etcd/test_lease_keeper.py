"""When a lease is renewed, and when it must count as lost. Time is a number that sleeping moves."""

from __future__ import annotations

import pytest

from pointsman.edge.cluster.etcd.client import Lease
from pointsman.edge.cluster.etcd.errors import EtcdRefusedError, EtcdUnreachableError, LeaseLostError
from pointsman.edge.cluster.etcd.lease_keeper import keep_lease

LEASE = Lease(7, 9)


class Etcd:
    """Answers with what it is told, one a call."""

    def __init__(self, *answers: int | Exception, call_takes_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.asked_at_s: list[float] = []
        self._answers = iter(answers)
        self._call_takes_s = call_takes_s

    async def keep_alive(self, lease: int) -> int:
        assert lease == LEASE.id
        self.asked_at_s.append(self.now_s)
        self.now_s += self._call_takes_s
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    async def keep(self) -> str:
        return await keep_lease(self, LEASE, lambda: self.now_s, self.sleep)


async def test_renewed_three_times_in_its_time() -> None:
    etcd = Etcd(9, 9, 9, LeaseLostError("over"))
    assert await etcd.keep() == "over"
    assert etcd.asked_at_s == [103, 106, 109, 112]


async def test_etcd_away_for_less_than_its_time() -> None:
    away = [EtcdUnreachableError("away")] * 3
    etcd = Etcd(*away, 9, LeaseLostError("over"))
    assert await etcd.keep() == "over"
    assert etcd.asked_at_s[:4] == pytest.approx([103, 103.9, 104.8, 105.7])
    assert etcd.asked_at_s[4] == pytest.approx(108.7)


async def test_etcd_away_for_longer() -> None:
    etcd = Etcd(9, *[EtcdUnreachableError("away")] * 100)
    assert "9 s are over, and away" in await etcd.keep()
    assert etcd.now_s == pytest.approx(112)  # nine seconds after the last renewal was asked for


async def test_slow_answers_count() -> None:
    """What matters is when a renewal was asked for: etcd may have begun to count then."""
    etcd = Etcd(9, *[EtcdUnreachableError("away")] * 100, call_takes_s=4.0)
    assert "9 s are over" in await etcd.keep()
    assert etcd.asked_at_s == [103, 110]
    assert etcd.now_s == 114


async def test_who_is_refused_is_told() -> None:
    with pytest.raises(EtcdRefusedError):
        await Etcd(EtcdRefusedError("permission denied")).keep()
