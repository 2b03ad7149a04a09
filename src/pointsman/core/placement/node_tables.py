"""Node tables: how many pods of each role a node can take, exactly: devices, parts of devices, CPU and memory together.

Nodes that can take the same are one class, worked out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pointsman.core.placement.domains import Bools, Ints
from pointsman.core.placement.resources import WHOLE_GPU_MILLI, Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import NO_FIT, Table


@dataclass(frozen=True)
class NodeTables:
    """`tables[class_of[row]]` is the table of a node."""

    class_of: Ints
    tables: tuple[Table, ...]
    most: Ints
    """(roles, nodes): pods of each role that fit if the node takes no other role."""
    sums: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
    """What searches remember for the next one over the same nodes."""


def node_tables(
    state: ClusterState, asks: Sequence[Resources], fits: Sequence[Bools], caps: Sequence[int]
) -> NodeTables:
    """Of pods that ask for `asks`, each role on the nodes where `fits` says so, `caps` of them at most."""
    most = np.stack([np.where(fit, _alone(state, ask, cap), 0) for ask, fit, cap in zip(asks, fits, caps, strict=True)])
    rows = _signatures(state, asks, most)
    unique, class_of = _unique_rows(rows)
    known: dict[tuple[bytes, tuple[int, ...]], int] = {}
    tables: list[Table] = []
    mine = np.empty(len(unique), dtype=np.int64)
    roles = len(asks)
    for position, row in enumerate(unique):
        limits = row[:roles].tolist()
        whole, cpu, memory = (int(value) for value in row[roles : roles + 3])
        values = _values(asks, limits, whole, cpu, memory, [int(free) for free in row[roles + 3 :] if free > 0])
        key = (values.tobytes(), values.shape)
        found = known.get(key)
        if found is None:
            found = known[key] = len(tables)
            tables.append(Table(np.zeros(1, dtype=np.int64), values[None]))
        mine[position] = found
    return NodeTables(mine[class_of], tuple(tables), most)


def _alone(state: ClusterState, ask: Resources, cap: int) -> Ints:
    """Pods that fit on each node while there are no others."""
    found = np.full(len(state.nodes), cap, dtype=np.int64)
    if ask.whole_gpus:
        np.minimum(found, state.whole_free // ask.whole_gpus, out=found)
    elif ask.gpu_milli:
        shares = np.maximum(state.device_free_milli, 0).astype(np.int64) // ask.gpu_milli
        np.minimum(found, shares.sum(axis=1), out=found)
    if ask.cpu_milli:
        np.minimum(found, state.cpu_free_milli // ask.cpu_milli, out=found)
    if ask.memory_bytes:
        np.minimum(found, state.memory_free_bytes // ask.memory_bytes, out=found)
    return found


def _signatures(state: ClusterState, asks: Sequence[Resources], most: Ints) -> Ints:
    """(nodes, …): all that decides what fits, cut to what could be used, so that more nodes are equal."""
    cpu = np.array([ask.cpu_milli for ask in asks], dtype=np.int64)
    memory = np.array([ask.memory_bytes for ask in asks], dtype=np.int64)
    devices = np.array([ask.whole_gpus for ask in asks], dtype=np.int64)
    shared = any(ask.device_share_milli for ask in asks)
    whole = state.whole_free if shared else np.minimum(state.whole_free, devices @ most)
    columns = [
        *most,
        np.where(most.any(axis=0), whole, 0),
        np.minimum(state.cpu_free_milli, cpu @ most),
        np.minimum(state.memory_free_bytes, memory @ most),
    ]
    if len(asks) == 1:  # its count says it all
        columns[1:] = [np.zeros_like(column) for column in columns[1:]]
        return np.stack(columns, axis=1)
    if shared:
        least = min(ask.device_share_milli for ask in asks if ask.device_share_milli)
        free = state.device_free_milli.astype(np.int64)
        parts = np.where((free >= least) & (free < WHOLE_GPU_MILLI) & (most.max(axis=0) > 0)[:, None], free, 0)
        columns.extend(np.sort(parts, axis=1).T)
    return np.stack(columns, axis=1)


def _unique_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Rows that differ, and which of them each row is."""
    if not rows[:, 1:].any():
        counts, inverse = np.unique(rows[:, 0], return_inverse=True)
        unique = np.zeros((len(counts), rows.shape[1]), dtype=np.int64)
        unique[:, 0] = counts
        return unique, inverse.astype(np.int64)
    first: dict[bytes, int] = {}
    class_of = np.empty(len(rows), dtype=np.int64)
    width = rows.shape[1] * rows.itemsize
    raw = np.ascontiguousarray(rows).tobytes()
    where: list[int] = []
    for row in range(len(rows)):
        key = raw[row * width : (row + 1) * width]
        found = first.get(key)
        if found is None:
            found = first[key] = len(where)
            where.append(row)
        class_of[row] = found
    return rows[where], class_of


def _values(
    asks: Sequence[Resources], limits: Sequence[int], whole: int, cpu: int, memory: int, parts: Sequence[int]
) -> NDArray[np.int32]:
    """The values of one node's table. `parts`: what is free of devices that are in use."""
    roles = len(asks)
    if roles == 1:
        return np.array(limits[0], dtype=np.int32)
    counts = np.indices([limit + 1 for limit in limits])
    fits = np.ones(counts.shape[1:], dtype=np.bool_)
    for amount, have in (
        ([ask.cpu_milli for ask in asks], cpu),
        ([ask.memory_bytes for ask in asks], memory),
    ):
        if any(amount):
            fits &= np.tensordot(np.array(amount, dtype=np.int64), counts, axes=1) <= have
    used = np.tensordot(np.array([ask.whole_gpus for ask in asks], dtype=np.int64), counts, axes=1)
    shared = [role for role, ask in enumerate(asks) if ask.device_share_milli and limits[role]]
    if shared:
        needs = _devices_needed(
            [asks[role].gpu_milli for role in shared], [limits[role] for role in shared], whole, parts
        )
        used = used + needs[tuple(counts[role] for role in shared)]
    fits &= used <= whole
    found: NDArray[np.int32] = (fits.sum(axis=-1) - 1).astype(np.int32)  # what fits is less of what fits: no gaps
    return np.maximum(found, NO_FIT)


def _devices_needed(shares: Sequence[int], limits: Sequence[int], whole: int, parts: Sequence[int]) -> Ints:
    """Free devices that so many pods of each share break into, besides the parts that are left of others; exact."""
    shape = tuple(limit + 1 for limit in limits)
    needs = np.full(shape, whole + 1, dtype=np.int64)
    reach = np.zeros(shape, dtype=np.bool_)
    reach[(0,) * len(shape)] = True
    for free in parts:
        reach = _with_device(reach, _device_corners(free, shares, limits))
    needs[reach] = 0
    corners = _device_corners(WHOLE_GPU_MILLI, shares, limits)
    for devices in range(1, whole + 1):
        if reach.all():
            break
        reach = _with_device(reach, corners)
        needs[reach & (needs > devices)] = devices
    return needs


def _with_device(reach: Bools, corners: Sequence[tuple[int, ...]]) -> Bools:
    """What fits with one device more."""
    found = reach.copy()
    for corner in corners:
        index = np.ix_(*(np.maximum(np.arange(size) - take, 0) for size, take in zip(reach.shape, corner, strict=True)))
        found |= reach[index]
    return found


def _device_corners(free: int, shares: Sequence[int], limits: Sequence[int]) -> list[tuple[int, ...]]:
    """Counts of each share that fill one device; none of them is less of another one."""
    if len(shares) == 1:
        return [(min(limits[0], free // shares[0]),)]
    found: list[tuple[int, ...]] = []
    for count in range(min(limits[0], free // shares[0]), -1, -1):
        for rest in _device_corners(free - count * shares[0], shares[1:], limits[1:]):
            corner = (count, *rest)
            if not any(all(a <= b for a, b in zip(corner, other, strict=True)) for other in found):
                found.append(corner)
    return found
