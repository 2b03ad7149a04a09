from __future__ import annotations

import asyncio
import random

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import text_block_keys
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerSpec, worker_id
from pointsman.edge.cluster.replicas.replication import Replication
from pointsman.edge.cluster.replicas.settings import ReplicaSettings
from support.replica_network import ReplicaNetwork
from support.virtual_time import run_virtually

ENGINES = ("a", "b")


class Node:
    def __init__(self, network: ReplicaNetwork) -> None:
        loop = asyncio.get_running_loop()
        self.ledger = Ledger(text_block_bytes=16)
        self.transport = network.transport()
        self.replication = Replication(ReplicaSettings(), self.ledger, lambda: loop.time() * 1000, self.transport)

    def know(self) -> None:
        for engine in ENGINES:
            self.ledger.apply(ev.WorkerJoined(WorkerSpec(worker_id(engine), f"http://{engine}", "x", ("m",)), 0.0))

    def send(self, name: str, engine: str) -> None:
        self.ledger.apply(ev.Admitted(prompt(name), 0.0))
        self.ledger.apply(ev.Dispatched(name, worker_id(engine), 0.0))
        self.ledger.apply(ev.FirstToken(name, 0.0))
        self.ledger.apply(ev.Finished(name, 0.0))

    def cached(self, name: str) -> list[int]:
        return [int(n) for n in self.ledger.view(prompt(name)).column(Column.CACHED_TOKENS)]


def prompt(name: str) -> Request:
    keys = text_block_keys(name.encode() * 100, 16, 1)
    return Request(name, "m", 0.0, 100, keys)


def test_one_that_starts_late_knows_what_was_sent_before() -> None:
    async def work() -> None:
        network = ReplicaNetwork(random.Random(1))
        first, dead, late = Node(network), Node(network), Node(network)
        for node in (first, dead):
            node.know()
            await node.replication.start()
        for number in range(5):
            first.send(f"one {number}", "a")
            first.send(f"two {number}", "b")
        await asyncio.sleep(5.0)
        await late.replication.start()
        await asyncio.sleep(5.0)
        late.know()  # its engines answer late
        await asyncio.sleep(10.0)
        for number in range(5):
            for name in (f"one {number}", f"two {number}"):
                assert late.cached(name) == first.cached(name)
                assert sum(late.cached(name)) > 0
        assert late.ledger.snapshot().text_blocks == first.ledger.snapshot().text_blocks
        for node in (first, dead, late):
            await node.replication.close()

    run_virtually(work())


def test_one_that_does_not_answer_is_not_the_only_one_that_is_asked() -> None:
    async def work() -> None:
        network = ReplicaNetwork(random.Random(1))
        deaf, other, late = Node(network), Node(network), Node(network)
        for node in (deaf, other):
            node.know()
            await node.replication.start()
        other.send("one", "a")
        deaf.ledger.sent_before = lambda most: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        late.know()
        await asyncio.sleep(1.0)
        await late.replication.start()
        await asyncio.sleep(12.0)
        assert sum(late.cached("one")) > 0
        assert deaf.replication.messages()["refused"] >= 1
        for node in (deaf, other, late):
            await node.replication.close()

    run_virtually(work())


def test_the_order_in_which_blocks_go_is_lent_too() -> None:
    lender, borrower = Ledger(text_block_bytes=16), Ledger(text_block_bytes=16)
    for ledger, capacity in ((lender, None), (borrower, 4 * 60)):
        spec = WorkerSpec(worker_id("a"), "http://a", "x", ("m",), kv_capacity_tokens=capacity)
        ledger.apply(ev.WorkerJoined(spec, 0.0))
    for name in ("old", "new"):
        lender.apply(ev.Admitted(prompt(name), 0.0))
        lender.apply(ev.Dispatched(name, worker_id("a"), 0.0))
    borrower.apply(ev.ReplicaTold("r", 0.0, lender.sent_before(1_000)))
    cached = {name: int(borrower.view(prompt(name)).column(Column.CACHED_TOKENS)[0]) for name in ("old", "new")}
    assert cached["new"] > 0
    assert len(lender.sent_before(10).prompts[0].text_keys) == 10
    assert lender.sent_before(10).prompts[0].text_keys == lender.sent_before(1_000).prompts[0].text_keys[:10]
