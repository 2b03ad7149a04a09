"""Whatever is lost, doubled, late or parted: once it is quiet all front ends count the same, and zero at rest."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerSpec, worker_id
from pointsman.edge.cluster.replicas.ledger_sync import LedgerSync
from pointsman.edge.cluster.replicas.replica_bus import ReplicaBus
from support.replica_network import MemoryTransport, ReplicaNetwork
from support.virtual_time import run_virtually

ENGINES = ("a", "b", "c")
SUMS = (
    Column.RUNNING,
    Column.PREFILL_TOKENS,
    Column.KV_TOKENS,
    Column.WAITING_FIRST,
    Column.REMAINING_TOKENS,
    Column.SLO_DECODING,
    Column.SLO_TPOT_US,
    Column.SLO_WAITING,
)
QUIET_S = 10.0
PROBE = Request("probe", "m", 0.0, 0)
"""For views."""


@dataclass
class Node:
    """A front end without a network of its own: ledger, bus, and what it has in flight."""

    number: int
    ledger: Ledger
    bus: ReplicaBus
    transport: MemoryTransport
    waiting: list[str] = field(default_factory=list)
    decoding: list[str] = field(default_factory=list)
    alive: bool = True

    def now_ms(self) -> float:
        """Clocks of different hosts have nothing in common."""
        return asyncio.get_running_loop().time() * 1000 + 1e7 * self.number

    def numbers(self) -> np.ndarray:
        view = self.ledger.view(PROBE)
        order = np.argsort(view.workers)
        return view.table[list(SUMS)][:, order]

    def own(self) -> np.ndarray:
        shares = {w.id: w for w in self.ledger.snapshot().workers}
        return np.array([shares[worker_id(e)].sequences for e in ENGINES])


async def make_node(number: int, network: ReplicaNetwork) -> Node:
    ledger = Ledger(text_block_bytes=16)
    transport = network.transport()
    loop = asyncio.get_running_loop()

    def now_ms() -> float:
        return loop.time() * 1000 + 1e7 * number

    bus = ReplicaBus(transport, now_ms, replica=f"n{number}", name=f"node {number}")
    LedgerSync(ledger, bus, now_ms)
    for engine in ENGINES:
        join(ledger, engine, now_ms())
    await bus.start()
    return Node(number, ledger, bus, transport)


def join(ledger: Ledger, engine: str, at_ms: float) -> None:
    ledger.apply(ev.WorkerJoined(WorkerSpec(worker_id(engine), f"http://{engine}", "vllm", ("m",)), at_ms))


def act(node: Node, rng: random.Random, count: int) -> None:
    """One thing that happens at a front end."""
    apply, at_ms = node.ledger.apply, node.now_ms()
    kind = rng.choice(("send", "send", "first", "progress", "end", "end", "fail", "rejoin"))
    if kind == "send":
        slo = rng.choice((None, Slo(500.0, 20.0)))
        request = Request(
            f"{node.number}-{count}", "m", at_ms, rng.randrange(300), sequences=rng.randint(1, 3), slo=slo
        )
        apply(ev.Admitted(request, at_ms))
        apply(ev.Dispatched(request.id, worker_id(rng.choice(ENGINES)), at_ms, rng.randrange(100)))
        node.waiting.append(request.id)
    elif kind == "first" and node.waiting:
        request_id = node.waiting.pop(rng.randrange(len(node.waiting)))
        apply(ev.FirstToken(request_id, at_ms))
        node.decoding.append(request_id)
    elif kind == "progress" and node.decoding:
        apply(ev.Progress(rng.choice(node.decoding), at_ms, rng.randint(1, 64)))
    elif kind == "end" and node.decoding:
        apply(ev.Finished(node.decoding.pop(rng.randrange(len(node.decoding))), at_ms, 10, 0, 10))
    elif kind == "fail" and node.waiting:
        apply(ev.Failed(node.waiting.pop(), at_ms, "test"))
    elif kind == "rejoin" and rng.random() < 0.3:
        # Everybody sees it restart; requests that were there end later, each by itself.
        join(node.ledger, rng.choice(ENGINES), at_ms)


def end_all(node: Node) -> None:
    for request_id in node.waiting + node.decoding:
        node.ledger.apply(ev.Cancelled(request_id, node.now_ms()))
    node.waiting.clear()
    node.decoding.clear()


def assert_alike(nodes: list[Node]) -> None:
    expected = sum(node.own() for node in nodes)
    for node in nodes:
        assert len(node.bus.peers) == len(nodes) - 1
        assert (node.numbers()[0] == expected).all()
        assert (node.numbers() == nodes[0].numbers()).all()


@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.1, 0.6]),
    doubling=st.sampled_from([0.0, 0.4]),
    most_delay_s=st.sampled_from([0.0, 0.005, 0.2]),
    steps=st.integers(1, 80),
    parts=st.booleans(),
    dies=st.booleans(),
)
@settings(max_examples=60)
def test_all_count_the_same_once_it_is_quiet(
    seed: int, loss: float, doubling: float, most_delay_s: float, steps: int, parts: bool, dies: bool
) -> None:
    async def work() -> None:
        rng = random.Random(seed)
        network = ReplicaNetwork(rng, most_delay_s)
        nodes = [await make_node(number, network) for number in range(3)]
        network.loss, network.doubling = loss, doubling
        for count in range(steps):
            if parts and count == steps // 3:
                network.parted = {frozenset((0, 1)), frozenset((0, 2))}
            if parts and count == 2 * steps // 3:
                network.parted = set()
            act(rng.choice(nodes), rng, count)
            await asyncio.sleep(rng.choice((0.0, 0.003, 0.1, 1.0)))
        if dies:
            nodes.pop().transport.cut()
        network.loss = 0.0
        await asyncio.sleep(QUIET_S)
        assert_alike(nodes)
        for node in nodes:
            end_all(node)
        await asyncio.sleep(QUIET_S)
        for node in nodes:
            view = node.ledger.view(PROBE)
            assert not view.table[[*SUMS, Column.SLO_DUE_MS]].any()
            await node.bus.close()

    run_virtually(work())


def test_load_of_others_is_counted_within_100_ms() -> None:
    async def work() -> None:
        network = ReplicaNetwork(random.Random(1))
        nodes = [await make_node(number, network) for number in range(3)]
        await asyncio.sleep(2.0)
        request = Request("r", "m", nodes[0].now_ms(), 100, sequences=2)
        nodes[0].ledger.apply(ev.Admitted(request, nodes[0].now_ms()))
        nodes[0].ledger.apply(ev.Dispatched("r", worker_id("b"), nodes[0].now_ms()))
        await asyncio.sleep(0.1)
        for node in nodes:
            assert node.numbers()[:4].tolist() == [[0, 2, 0], [0, 100, 0], [0, 100, 0], [0, 1, 0]]

    run_virtually(work())


def test_what_a_dead_one_held_is_free_within_3_s_and_what_one_that_says_goodbye_held_at_once() -> None:
    async def work() -> None:
        network = ReplicaNetwork(random.Random(1))
        nodes = [await make_node(number, network) for number in range(3)]
        await asyncio.sleep(2.0)
        for node in nodes[1:]:
            request = Request(f"r{node.number}", "m", node.now_ms(), 100)
            node.ledger.apply(ev.Admitted(request, node.now_ms()))
            node.ledger.apply(ev.Dispatched(request.id, worker_id("a"), node.now_ms()))
        await asyncio.sleep(0.1)
        assert nodes[0].numbers()[0].tolist() == [2, 0, 0]
        await nodes[1].bus.close()
        await asyncio.sleep(0.01)
        assert nodes[0].numbers()[0].tolist() == [1, 0, 0]
        nodes[2].transport.cut()
        await asyncio.sleep(3.0)
        assert not nodes[0].numbers().any()

    run_virtually(work())


def test_one_that_stood_still_comes_back_with_all_that_it_has() -> None:
    async def work() -> None:
        network = ReplicaNetwork(random.Random(1))
        nodes = [await make_node(number, network) for number in range(2)]
        await asyncio.sleep(2.0)
        request = Request("r", "m", nodes[1].now_ms(), 100)
        nodes[1].ledger.apply(ev.Admitted(request, nodes[1].now_ms()))
        nodes[1].ledger.apply(ev.Dispatched("r", worker_id("a"), nodes[1].now_ms()))
        await asyncio.sleep(0.1)
        network.parted = {frozenset((0, 1))}
        await asyncio.sleep(3.0)
        assert not nodes[0].numbers().any()
        network.parted = set()
        await asyncio.sleep(1.5)
        assert_alike(nodes)
        assert nodes[0].numbers()[0].tolist() == [1, 0, 0]

    run_virtually(work())
