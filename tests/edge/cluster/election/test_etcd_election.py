"""Never two leaders at once, whoever is cut off when; and soon one again."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.cluster.election.election import Leadership, while_leading
from pointsman.edge.cluster.election.etcd_election import TTL_S, EtcdElection
from support.fake_etcd import FakeEtcd, FakeEtcdClient
from support.virtual_time import run_virtually

TAKES_OVER_S = 15.0


class Candidate:
    """Leads whenever it is elected; resigns now and then if `fickle`."""

    def __init__(self, etcd: FakeEtcd, name: str) -> None:
        self.client: FakeEtcdClient = etcd.client()
        loop = asyncio.get_running_loop()
        self.election = EtcdElection(self.client, "f", "planner", name, now_s=loop.time)
        self.term: Leadership | None = None
        self.tokens: list[int] = []
        self.reasons: list[str] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.term = await self.election.campaign()
            self.tokens.append(self.term.token)
            self.reasons.append(await self.term.ended())

    @property
    def leads(self) -> bool:
        return self.term is not None and self.term.holds

    async def close(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.election.resign()


async def leader_of(candidates: list[Candidate], within_s: float) -> Candidate:
    """Waits for a leader; sees to it that there is never more than one."""
    for _ in range(int(within_s / 0.05) + 1):
        leading = [candidate for candidate in candidates if candidate.leads]
        assert len(leading) <= 1
        if leading:
            return leading[0]
        await asyncio.sleep(0.05)
    raise AssertionError(f"nobody leads after {within_s} s")


@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["cut", "deaf", "heal", "wipe", "resign", "wait"]), st.integers(0, 2), st.floats(0.0, 14.0)
        ),
        max_size=12,
    ),
)
@settings(max_examples=80)
def test_never_two_leaders_tokens_grow_and_soon_there_is_one_again(
    seed: int, steps: list[tuple[str, int, float]]
) -> None:
    async def work() -> None:
        etcd = FakeEtcd(random.Random(seed))
        candidates = [Candidate(etcd, f"c{number}") for number in range(3)]
        tokens: list[int] = []
        for kind, number, pause_s in steps:
            candidate = candidates[number]
            if kind in ("cut", "deaf"):
                setattr(candidate.client, kind, True)
            elif kind == "heal":
                candidate.client.cut = candidate.client.deaf = False
            elif kind == "resign":
                resigning = asyncio.ensure_future(candidate.election.resign())
            elif kind == "wipe" and not any(one.client.cut or one.client.deaf for one in candidates):
                await asyncio.sleep(3.0)  # all know who leads
                etcd.wipe()
            for _ in range(int(pause_s / 0.05)):
                leading = [one for one in candidates if one.leads]
                assert len(leading) <= 1
                tokens += [one.term.token for one in leading if one.term and one.term.token not in tokens]
                await asyncio.sleep(0.05)
            if kind == "resign":
                await resigning
        for one in candidates:
            one.client.cut = one.client.deaf = False
        await leader_of(candidates, TAKES_OVER_S + TTL_S * any(kind == "wipe" for kind, *_ in steps))
        assert tokens == sorted(tokens)
        for one in candidates:
            await one.close()

    run_virtually(work())


def test_a_standby_takes_over_within_15_s_and_the_old_leader_has_stepped_down_before() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        candidates = [Candidate(etcd := FakeEtcd(random.Random(1)), "a"), Candidate(etcd, "b")]
        first = await leader_of(candidates, 5.0)
        await asyncio.sleep(3 * TTL_S)
        assert first.leads
        first.client.cut = True
        cut_s = loop.time()
        other = candidates[1 - candidates.index(first)]
        while not other.leads:
            assert not (first.leads and other.leads)
            await asyncio.sleep(0.05)
        assert loop.time() - cut_s <= TAKES_OVER_S
        assert first.reasons[0].startswith("its time is over: etcd is away")
        assert other.tokens[0] > first.tokens[0]
        assert first.election.status.trouble == "etcd is away"
        assert first.election.status.leader is None
        first.client.cut = False
        await asyncio.sleep(5.0)
        assert first.election.status.leader == other.election.status.candidate
        assert not first.election.status.leads
        for one in candidates:
            await one.close()

    run_virtually(work())


def test_who_stood_still_knows_it_before_anything_happens() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        slept_s = 0.0
        etcd = FakeEtcd(random.Random(1))
        election = EtcdElection(etcd.client(), "f", "planner", "a", now_s=lambda: loop.time() + slept_s)
        term = await election.campaign()
        assert term.holds
        slept_s = 60.0
        assert not term.holds
        assert await term.ended() == "its time is over: this process stood still"
        await election.resign()

    run_virtually(work())


def test_work_runs_only_while_it_leads() -> None:
    async def work() -> None:
        etcd = FakeEtcd(random.Random(1))
        a, b = etcd.client(), etcd.client()
        loop = asyncio.get_running_loop()
        log: list[str] = []

        async def plan(term: Leadership) -> None:
            log.append(f"{term.token} begins")
            try:
                await asyncio.sleep(1e9)
            finally:
                assert not (term.holds and log[-1].endswith("ends"))
                log.append(f"{term.token} ends")

        elections = [EtcdElection(client, "f", "r", name, now_s=loop.time) for client, name in ((a, "a"), (b, "b"))]
        tasks = [asyncio.create_task(while_leading(election, plan)) for election in elections]
        await asyncio.sleep(5.0)
        assert len(log) == 1
        leading = next(i for i, election in enumerate(elections) if election.status.leads)
        (a, b)[leading].cut = True
        await asyncio.sleep(20.0)
        assert [line.split()[1] for line in log] == ["begins", "ends", "begins"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(log) == 4

        async def fail(term: Leadership) -> None:
            raise ValueError("nonsense")

        (a, b)[leading].cut = False
        with pytest.raises(ValueError, match="nonsense"):
            await while_leading(elections[0], fail)
        assert not elections[0].status.leads

    run_virtually(work())


def test_who_gives_up_holds_no_office_whenever_that_is() -> None:
    """Also when it was elected and the answer had not come yet: others need not wait for the lease to end."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        etcd = FakeEtcd(random.Random(1))

        async def plan(term: Leadership) -> None:
            await asyncio.sleep(1e9)

        for tenths in range(25):
            election = EtcdElection(etcd.client(), "f", "r", "a", now_s=loop.time)
            task = asyncio.create_task(while_leading(election, plan))
            await asyncio.sleep(tenths / 10)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            other = EtcdElection(etcd.client(), "f", "r", "b", now_s=loop.time)
            began_s = loop.time()
            await other.campaign()
            assert loop.time() - began_s < 3.0
            await other.resign()

    run_virtually(work())
