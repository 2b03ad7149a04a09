"""What lets KV move between modelled workers: shapes that go together, links, and what is known of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.engine_model.links import LinkNetwork
from pointsman.core.ledger import events as ev
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.worker import WorkerId
from pointsman.core.timing.links import Link, network_link

MEASURED_BYTES = (1 << 16, 8 << 20, 64 << 20, 512 << 20)
"""Sizes with which links were measured, one of each class."""
MOST_MEASURED = 64
"""Workers up to whose number each pair was measured; of more, only transfers teach."""


def kv_shape(setup: Setup, group: WorkerGroup, block_tokens: int) -> KvShape | None:
    """As its engine tells it; None: it passes no KV on."""
    if not setup.moves_kv:
        return None
    profile = group.profile
    return KvShape(
        handshake=HandShake.BLOCKS,
        block_size_tokens=block_tokens,
        tensor_parallel=profile.tensor_parallel,
        bytes_per_token=profile.kv_bytes_per_token,
        transports=("modelled",),
        parts=setup.pulls,
    )


def link_network(setup: Setup, groups: Sequence[WorkerGroup]) -> LinkNetwork:
    """The setup's link for all workers, else each one's share of the network that is usual for its GPUs.

    `groups`: that of each worker, by its number.
    """
    if setup.link is not None:
        return LinkNetwork(setup.link, between=setup.links_between)
    links: dict[int, Link] = {}
    for number, group in enumerate(groups):
        profile = group.profile
        # Nobody can say what network a GPU has that is not known: LinkNetwork's default then.
        with suppress(ConfigError):
            links[number] = network_link(profile.gpu, profile.tensor_parallel)
    return LinkNetwork(links=links, between=setup.links_between)


def measurements(
    setup: Setup, network: LinkNetwork, workers: Sequence[WorkerId], now_ms: float
) -> Iterator[ev.LinkMeasured]:
    """What `doctor links` would have told of every pair of workers, each on a machine of its own."""
    speed = setup.believed_speed
    if speed is None or not setup.moves_kv or len(workers) > MOST_MEASURED:
        return
    for source, one in enumerate(workers):
        for target, other in enumerate(workers):
            if source == target:
                continue
            floor_ms, bytes_per_ms = network.alone(source, target)
            for size_bytes in MEASURED_BYTES:
                took_ms = floor_ms + size_bytes / (bytes_per_ms * speed)
                yield ev.LinkMeasured(machine(one), machine(other), now_ms, size_bytes, took_ms)


def machine(worker: WorkerId) -> str:
    """The name of the machine that a modelled worker runs on."""
    return worker.partition("/")[0]
