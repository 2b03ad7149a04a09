"""Fleets as people write them: `--workers 16`, `--workers 4:12`, `--profile NAME`, `--profile prefill=A,decode=B`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pointsman.app.simulate.setup import WorkerGroup
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.worker import Role
from pointsman.core.timing.profiles import Profile

MOST_WORKERS = 4_096
"""Of a fleet that is simulated: so many take seconds a run, and a slip of the keyboard has to end."""
_BY_ROLE = re.compile(r"(?:^|,)\s*(prefill|decode)\s*=\s*")


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profile by role; `both` is None where workers are told apart."""

    both: Profile | None
    prefill: Profile
    decode: Profile


@dataclass(frozen=True, slots=True)
class Size:
    """Number of workers by role."""

    both: int = 0
    prefill: int = 0
    decode: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.both + self.prefill + self.decode

    def __str__(self) -> str:
        """As `parse_size` reads it."""
        return str(self.both) if self.both or not self.total else f"{self.prefill}:{self.decode}"


def parse_profiles(text: str, load: Callable[[str], Profile]) -> Profiles:
    """One profile for all, or `prefill=…,decode=…`; `load` finds each. Raises ConfigError."""
    if not _BY_ROLE.match(text):
        found = load(text.strip())
        return Profiles(found, found, found)
    _, *pieces = _BY_ROLE.split(text)
    by_role = dict(zip(pieces[::2], (piece.strip() for piece in pieces[1::2]), strict=True))
    if len(by_role) != 2 or len(pieces) != 4:
        raise ConfigError(f"--profile {text}: name one for each role, prefill=NAME,decode=NAME")
    return Profiles(None, load(by_role["prefill"]), load(by_role["decode"]))


def parse_size(text: str, option: str = "--workers") -> Size:
    """`16`, or `4:12` for 4 that prefill and 12 that decode. Raises ConfigError."""
    parts = text.split(":")
    if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
        raise ConfigError(f"{option} {text}: write a number such as 16, or prefill:decode such as 4:12")
    numbers = [int(part) for part in parts]
    if min(numbers) < 1:
        raise ConfigError(f"{option} {text}: at least one worker{' of each role' if len(parts) == 2 else ''} is needed")
    return Size(both=numbers[0]) if len(numbers) == 1 else Size(prefill=numbers[0], decode=numbers[1])


def groups(profiles: Profiles, size: Size) -> tuple[WorkerGroup, ...]:
    """The worker groups of a setup. Raises ConfigError where size and profiles do not fit, or for too many workers."""
    check_number(f"--workers {size}", size.total)
    if size.both:
        if profiles.both is None:
            raise ConfigError(
                f"--workers {size.both}: with a profile for each role say how many of each there are, such as 4:12"
            )
        return (WorkerGroup(profiles.both, size.both),)
    return (
        WorkerGroup(profiles.prefill, size.prefill, Role.PREFILL),
        WorkerGroup(profiles.decode, size.decode, Role.DECODE),
    )


def check_number(asked: str, workers: int) -> None:
    """Raise ConfigError if `workers`, which `asked` stands for, are more than `MOST_WORKERS`."""
    if workers > MOST_WORKERS:
        raise ConfigError(
            f"{asked}: {workers:,} workers are more than one computer simulates ({MOST_WORKERS:,}); take a part of the "
            "traffic and of the fleet"
        )
