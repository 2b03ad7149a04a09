"""Devices: which GPUs of a node its new pods count on: shared ones where shares fit already, whole ones last."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.resources import WHOLE_GPU_MILLI, Resources


def assign(free_milli: Sequence[int], asks: Sequence[Resources], counts: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """For each ask and each of its pods, the devices. Raises PlacementError if they do not fit.

    `free_milli` is what of each device is free (negative: there is none).
    """
    free = {device: milli for device, milli in enumerate(free_milli) if milli > 0}
    shared = [at for at, ask in enumerate(asks) if ask.device_share_milli and counts[at]]
    whole_needed = sum(ask.whole_gpus * count for ask, count in zip(asks, counts, strict=True))
    # Broken devices first, fullest first; then as many unbroken ones as whole pods leave.
    broken = sorted((device for device in free if free[device] < WHOLE_GPU_MILLI), key=lambda d: (free[d], d))
    unbroken = sorted(device for device in free if free[device] == WHOLE_GPU_MILLI)
    spare = len(unbroken) - whole_needed
    found: list[list[tuple[int, ...]]] = [[] for _ in asks]
    if spare < 0:
        raise PlacementError(f"{whole_needed} whole GPUs are expected, {len(unbroken)} are free")
    if shared:
        shares = [asks[at].gpu_milli for at in shared]
        filled = _filled([free[d] for d in broken], spare, shares, [counts[at] for at in shared])
        if filled is None:
            raise PlacementError("shares of GPUs do not fit the devices")
        for device, taken in zip(broken + unbroken, filled, strict=False):
            for at, pods in zip(shared, taken, strict=True):
                found[at].extend([(device,)] * pods)
        used = {device for pods in found for pod in pods for device in pod}
        unbroken = [device for device in unbroken if device not in used]
    for at, (ask, count) in enumerate(zip(asks, counts, strict=True)):
        if ask.device_share_milli:
            continue
        for _ in range(count):
            found[at].append(tuple(unbroken[: ask.whole_gpus]))
            unbroken = unbroken[ask.whole_gpus :]
    return found


def _filled(broken: list[int], spare: int, shares: list[int], counts: list[int]) -> list[tuple[int, ...]] | None:
    """Pods of each share on each device: the broken ones, then as few of the spare ones as will do."""
    for extra in range(spare + 1):
        dead: set[tuple[int, tuple[int, ...]]] = set()
        found = _fill([*broken, *([WHOLE_GPU_MILLI] * extra)], 0, shares, tuple(counts), dead)
        if found is not None:
            return found
    return None


def _fill(
    room: list[int], at: int, shares: list[int], counts: tuple[int, ...], dead: set[tuple[int, tuple[int, ...]]]
) -> list[tuple[int, ...]] | None:
    if not any(counts):
        return []
    if at == len(room) or (at, counts) in dead:
        return None
    for taken in _fillings(room[at], shares, counts):
        left = tuple(count - take for count, take in zip(counts, taken, strict=True))
        rest = _fill(room, at + 1, shares, left, dead)
        if rest is not None:
            return [taken, *rest]
    dead.add((at, counts))
    return None


def _fillings(room: int, shares: list[int], counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Ways to fill one device, fullest first, none of them with room for one pod more."""
    if len(shares) == 1:
        return [(min(counts[0], room // shares[0]),)]
    found = [
        (first, *rest)
        for first in range(min(counts[0], room // shares[0]), -1, -1)
        for rest in _fillings(room - first * shares[0], shares[1:], counts[1:])
    ]
    return sorted(set(found), key=lambda taken: -sum(a * b for a, b in zip(taken, shares, strict=True)))
