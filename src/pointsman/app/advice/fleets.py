"""Fleets that so many GPUs can be: workers for both stages, or so many for prefill and so many for decode."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.app.experiments.fleet import Profiles, check_number
from pointsman.app.simulate.setup import WorkerGroup
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.core.timing.profiles import Profile


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs that there are; with kinds of their own for each stage, how many of which may be given."""

    total: int
    prefill: int | None = None
    decode: int | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """One way to use the GPUs."""

    name: str
    """For example `8 workers` or `2:6`."""
    groups: tuple[WorkerGroup, ...]

    @property
    def workers(self) -> int:
        """Workers in all groups."""
        return sum(group.count for group in self.groups)

    @property
    def gpus(self) -> int:
        """GPUs that they use."""
        return sum(group.count * group.profile.tensor_parallel for group in self.groups)

    @property
    def kv_tokens(self) -> int:
        """Tokens that all their KV caches hold together."""
        return sum(group.count * group.profile.kv_tokens for group in self.groups)

    @property
    def kv_bytes(self) -> int:
        """The same in bytes."""
        return sum(group.count * group.profile.kv_tokens * group.profile.kv_bytes_per_token for group in self.groups)


@dataclass(frozen=True, slots=True)
class Fleets:
    """All ways that are looked at."""

    together: tuple[Fleet, ...]
    """Each worker does both stages; several where GPUs of two kinds could be bought."""
    split: tuple[Fleet, ...]
    """Prefill and decode apart, by the number of workers for prefill."""
    one_kind: Profile | None
    """The profile of all workers; None: each stage has its own."""
    notes: tuple[str, ...] = ()


def parse_gpus(text: str) -> Gpus:
    """`8`, or `4:4`, of the prefill and of the decode profile. Raises ConfigError."""
    parts = [part.strip() for part in text.split(":")]
    if len(parts) > 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(
            f"--gpus {text}: write how many there are, such as 8, or 4:4 for so many of each of two profiles"
        )
    numbers = [int(part) for part in parts]
    return Gpus(sum(numbers), *(numbers if len(numbers) == 2 else (None, None)))


def fleets(profiles: Profiles, gpus: Gpus) -> Fleets:
    """What `gpus` can be. Raises ConfigError where they are not enough for one worker, or too many."""
    fewest = min(profiles.prefill.tensor_parallel, profiles.decode.tensor_parallel)
    check_number(f"--gpus {gpus.total}", gpus.total // fewest)
    if profiles.both is not None:
        return _of_one_kind(profiles.both, gpus)
    if gpus.prefill is None or gpus.decode is None:
        return _to_be_bought(profiles, gpus.total)
    return _of_two_kinds(profiles, gpus.prefill, gpus.decode)


def of_size(profile: Profile, workers: int) -> Fleet:
    """So many workers for both stages."""
    return Fleet(counted(workers), (WorkerGroup(profile, workers),))


def counted(workers: int) -> str:
    """`1 worker`, `8 workers`."""
    return f"{workers:,} worker{'' if workers == 1 else 's'}"


def _of_one_kind(profile: Profile, gpus: Gpus) -> Fleets:
    if gpus.prefill is not None:
        raise ConfigError(
            f"--gpus {gpus.prefill}:{gpus.decode}: counts of two kinds go with --profile prefill=NAME,decode=NAME; "
            f"with one profile write --gpus {gpus.total}"
        )
    workers = _workers(profile, gpus.total)
    return Fleets(
        (of_size(profile, workers),),
        tuple(_split(profile, number, profile, workers - number) for number in range(1, workers)),
        profile,
        _left_over(gpus.total - workers * profile.tensor_parallel, profile),
    )


def _of_two_kinds(profiles: Profiles, prefill_gpus: int, decode_gpus: int) -> Fleets:
    first, second = profiles.prefill, profiles.decode
    counts = _workers(first, prefill_gpus), _workers(second, decode_gpus)
    notes = [
        *_left_over(prefill_gpus - counts[0] * first.tensor_parallel, first),
        *_left_over(decode_gpus - counts[1] * second.tensor_parallel, second),
    ]
    together = Fleet(
        f"{counts[0]} + {counted(counts[1])}", (WorkerGroup(first, counts[0]), WorkerGroup(second, counts[1]))
    )
    return Fleets((together,), (_split(first, counts[0], second, counts[1]),), None, tuple(notes))


def _to_be_bought(profiles: Profiles, total: int) -> Fleets:
    """Any number of either kind, `total` together."""
    first, second = profiles.prefill, profiles.decode
    together = tuple(
        Fleet(
            f"{counted(total // each.tensor_parallel)} of {each.name}",
            of_size(each, total // each.tensor_parallel).groups,
        )
        for each in (first, second)
        if total >= each.tensor_parallel
    )
    if not together:
        _workers(min((first, second), key=lambda each: each.tensor_parallel), total)
    split = []
    for number in range(1, total // first.tensor_parallel + 1):
        left = (total - number * first.tensor_parallel) // second.tensor_parallel
        if left:
            split.append(_split(first, number, second, left))
    return Fleets(together, tuple(split), None)


def _split(prefill: Profile, prefill_workers: int, decode: Profile, decode_workers: int) -> Fleet:
    return Fleet(
        f"{prefill_workers}:{decode_workers}",
        (WorkerGroup(prefill, prefill_workers, Role.PREFILL), WorkerGroup(decode, decode_workers, Role.DECODE)),
    )


def _workers(profile: Profile, gpus: int) -> int:
    needed = profile.tensor_parallel
    if gpus < needed:
        raise ConfigError(
            f"--gpus {gpus}: one worker of {profile.name} takes {needed} GPUs; give at least {needed}, or a profile "
            "with less tensor parallelism"
        )
    return gpus // needed


def _left_over(gpus: int, profile: Profile) -> tuple[str, ...]:
    if not gpus:
        return ()
    are = "GPU is" if gpus == 1 else "GPUs are"
    return (f"{gpus} {are} left over: a worker of {profile.name} takes {profile.tensor_parallel}.",)
