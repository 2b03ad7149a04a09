"""Reloader: reads the configuration again and puts in force what may change while requests run."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving.reload.keys import changed_keys, is_live, under
from pointsman.edge.serving.reload.source import ConfigSource
from pointsman.edge.serving.settings import FrontendSettings

_log = logging.getLogger("pointsman.serving")

Apply = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Part:
    """What some keys are for."""

    keys: tuple[str, ...]
    prepare: Callable[[FrontendSettings], Apply]
    """Checks, changes nothing and may raise PointsmanError; what it returns puts the change in force and can't fail."""
    is_new: Callable[[FrontendSettings], bool] = lambda new: False
    """Whether what a key names, such as a file, says something else now, though the key is as it was."""


class ReloadReport(msgspec.Struct):
    """What became of a reload."""

    changed: list[str]
    """Keys that are in force now."""
    needs_restart: list[str]
    """Keys that differ from what the front end started with, and wait for its next start."""


class Reloader:
    """One reload at a time. A configuration that can't be used changes nothing.

    What was changed by hand meanwhile (the policy, a rollout) stays, unless the file changed the same.

    Args:
        tenancy: takes keys and limits; reads the file of keys again in any case. May raise, with nothing changed.
        outcomes: counts reloads.
    """

    def __init__(
        self,
        source: ConfigSource,
        parts: Sequence[Part],
        tenancy: Callable[[FrontendSettings], Awaitable[None]],
        outcomes: Counter[str],
    ) -> None:
        self._source = source
        self._parts = tuple(parts)
        self._tenancy = tenancy
        self._outcomes = outcomes
        self._tree = source.tree
        self._turn = asyncio.Lock()

    @property
    def tree(self) -> ConfigTree:
        """As it was read last."""
        return self._tree

    def can_roll_over(self) -> bool:
        """Whether front ends can be replaced one by one."""
        return self._source.roll_over is not None

    async def roll_over(self) -> None:
        """Ask for all front ends to be replaced one by one. Raises PointsmanError for a configuration of no use."""
        if self._source.roll_over is not None:
            await asyncio.to_thread(self._read)
            self._source.roll_over()

    async def reload(self, why: str) -> ReloadReport:
        """Read it again and put it in force. Raises PointsmanError that names the line and the key."""
        async with self._turn:
            try:
                report = await self._reload()
            except PointsmanError as error:
                self._outcomes["refused"] += 1
                _log.error("the configuration was read again (%s) and is refused, nothing changes: %s", why, error)
                raise
        self._outcomes["applied"] += 1
        _log.info("the configuration was read again (%s); changed: %s", why, ", ".join(report.changed) or "nothing")
        if report.needs_restart:
            _log.warning("these keys changed and need a restart: %s", ", ".join(report.needs_restart))
        return report

    async def _reload(self) -> ReloadReport:
        tree, settings = await asyncio.to_thread(self._read)
        changed = [key for key in changed_keys(self._tree, tree) if is_live(key)]
        for part in self._parts:
            if not any(under(key, prefix) for key in changed for prefix in part.keys) and part.is_new(settings):
                changed.extend(part.keys)
        parts = [part for part in self._parts if any(under(key, prefix) for key in changed for prefix in part.keys)]
        applies = [part.prepare(settings) for part in parts]
        await self._tenancy(settings)
        for apply in applies:
            apply()
        self._tree = tree
        self._source.reloaded()
        waiting = [key for key in changed_keys(self._source.tree, tree) if not is_live(key)]
        return ReloadReport(changed, waiting)

    def _read(self) -> tuple[ConfigTree, FrontendSettings]:
        tree = self._source.reread()
        return tree, self._source.settings(tree)
