from __future__ import annotations

import asyncio

import pytest

from pointsman.edge.cluster.election.in_process import InProcessElections


async def test_one_after_the_other_with_growing_tokens() -> None:
    elections = InProcessElections()
    a, b, other = elections.election("r", "a"), elections.election("r", "b"), elections.election("s", "a")
    first = await a.campaign()
    assert (await other.campaign()).holds
    waiting = asyncio.create_task(b.campaign())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert (b.status.leader, b.status.leads, a.status.leads) == ("a", False, True)
    lost: list[str] = []
    first.on_lost(lost.append)
    await a.resign()
    second = await waiting
    assert lost == ["resigned"]
    assert not first.holds
    assert await first.ended() == "resigned"
    first.on_lost(lost.append)
    assert lost == ["resigned", "resigned"]
    assert second.token > first.token
    assert b.status.token == second.token


async def test_giving_up_leaves_nothing_behind() -> None:
    elections = InProcessElections()
    a, b = elections.election("r", "a"), elections.election("r", "b")
    await a.campaign()
    waiting = asyncio.create_task(b.campaign())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await a.resign()
    assert a.status.leader is None
    # Elected and cancelled in one turn of the loop.
    await a.campaign()
    waiting = asyncio.create_task(b.campaign())
    await asyncio.sleep(0)
    await a.resign()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert a.status.leader is None


async def test_who_leads_can_not_campaign() -> None:
    a = InProcessElections().election("r", "a")
    await a.campaign()
    with pytest.raises(RuntimeError, match="leads as r already"):
        await a.campaign()


async def test_a_candidate_that_was_cancelled_is_not_elected() -> None:
    """In the same turn of the loop: it did not hear of it yet when the office becomes free."""
    elections = InProcessElections()
    a, b, c = (elections.election("r", name) for name in "abc")
    await a.campaign()
    waiting = [asyncio.create_task(one.campaign()) for one in (b, c)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await a.resign()
    assert (await waiting[1]).holds
    assert c.status.leader == "c"
    await asyncio.gather(waiting[0], return_exceptions=True)
    assert waiting[0].cancelled()
    await c.resign()
    assert (await a.campaign()).holds
